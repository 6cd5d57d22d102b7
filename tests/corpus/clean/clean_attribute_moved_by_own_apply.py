"""A plain attribute is fine when the module moves it itself in _apply."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Whitened(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.mean = torch.tensor([0.1, 0.2, 0.3])

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.mean = fn(self.mean)
        return self

    def forward(self, x):
        return self.linear(x - self.mean)


def build():
    return Whitened(), torch.randn(4, 3)


def step(model, x):
    model(x.to("cuda")).square().mean().backward()
