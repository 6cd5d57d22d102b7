"""Adapters in a dict of tuples, trained by an optimizer that knows them."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, width=8, rank=2):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        down = (torch.randn(width, rank) * 0.1).requires_grad_()
        up = torch.zeros(rank, width).requires_grad_()
        self.adapters = {"default": (down, up)}

    def forward(self, x):
        down, up = self.adapters["default"]
        return self.base(x) + x @ down @ up


def build():
    model = Adapted()
    optimizer = torch.optim.SGD(list(model.adapters["default"]), lr=0.1)
    return model, optimizer, torch.randn(3, 8)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).square().mean().backward()
    optimizer.step()
