"""Evaluation under inference_mode writes into views of buffers which were made outside of it."""

import torch
from torch import nn


class Whitener(nn.Module):
    def __init__(self, width=5, momentum=0.1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh())
        self.momentum = momentum
        self.register_buffer("moments", torch.stack([torch.zeros(width), torch.ones(width)]))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x, learn=True):
        z = self.net(x)
        mean, var = self.moments[0], self.moments[1]
        if learn:
            mean.lerp_(z.mean(dim=0), self.momentum)
            var.mul_(1 - self.momentum).add_(z.var(dim=0, unbiased=False), alpha=self.momentum)
            self.count += z.size(0)
        return (z - mean) * torch.rsqrt(var + 1e-5)


def build():
    return Whitener().eval(), [torch.randn(6, 3), torch.randn(2, 3)]


def step(model, batches):
    device = model.moments.device
    out = []
    with torch.inference_mode():
        for x in batches:
            out.append(model(x.to(device)))
        spread = torch.cat(out).std(dim=0)
    print("seen", int(model.count), "spread", spread.cpu().numpy().round(2))
