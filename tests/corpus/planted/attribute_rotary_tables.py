"""Rotary cos and sin are computed once in the constructor."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Rotary(nn.Module):
    def __init__(self, dim=8, longest=12):
        super().__init__()
        angle = torch.outer(torch.arange(longest).float(), 1e4 ** (-torch.arange(0, dim, 2) / dim))
        self.cos = angle.cos().repeat(1, 2)
        self.sin = angle.sin().repeat(1, 2)
        self.query = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q = self.query(x)
        left, right = q.chunk(2, dim=-1)
        turned = torch.cat([-right, left], dim=-1)
        n = x.size(1)
        straight = q * self.cos[:n]  # fails: attribute
        return straight + turned * self.sin[:n]  # fails: attribute


def build():
    return Rotary(), torch.randn(2, 5, 8)


def step(model, x):
    model(x.to("cuda")).sum().backward()
