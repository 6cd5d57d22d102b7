"""A hook that gates, a list of residual scales, and momentum from before."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.alphas = [torch.full((4,), 0.5), torch.full((4,), 0.25)]
        gate = torch.ones(4)
        self.layers[0].register_forward_pre_hook(lambda module, args: (args[0] * gate,))  # fails: closure

    def forward(self, x):
        for layer, alpha in zip(self.layers, self.alphas, strict=True):
            x = x + alpha * layer(x)  # fails: container
        return x


def build():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x = torch.randn(3, 4)
    model(x).square().mean().backward()
    optimizer.step()
    return model, optimizer, x


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).square().mean().backward()
    optimizer.step()  # fails: optimizer
