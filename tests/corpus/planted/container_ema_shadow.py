"""The averaged weights live in a dict beside the model."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class WithAverage(nn.Module):
    def __init__(self, decay=0.99):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def forward(self, x):
        return self.net(x)

    @torch.no_grad()
    def average(self):
        for name, p in self.net.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)  # fails: container


def build():
    model = WithAverage()
    return model, torch.optim.Adam(model.parameters()), (torch.randn(4, 4), torch.randn(4, 1))


def step(model, optimizer, batch):
    x, y = [t.cuda() for t in batch]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    model.average()
