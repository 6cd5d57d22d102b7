"""Adapters are kept by name in a dict, so they are easy to swap."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Adapted(nn.Module):
    def __init__(self, width=8, rank=2):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.adapters = {
            "french": (torch.randn(width, rank) * 0.1, torch.zeros(rank, width)),
            "german": (torch.randn(width, rank) * 0.1, torch.zeros(rank, width)),
        }
        for pair in self.adapters.values():
            for matrix in pair:
                matrix.requires_grad_()

    def forward(self, x, name):
        down, up = self.adapters[name]
        low = x @ down  # fails: container
        return self.base(x) + low @ up  # fails: container


def build():
    return Adapted(), {"x": torch.randn(3, 8), "name": "german"}


def step(model, batch):
    x = batch["x"].to("cuda")
    model(x, batch["name"]).square().mean().backward()
