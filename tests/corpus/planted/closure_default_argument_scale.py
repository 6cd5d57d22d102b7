"""A sensible default for the scale saves the caller some typing."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class ScaledNorm(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, scale=torch.linspace(0.5, 1.5, 6)):  # noqa: B008
        x = self.linear(x)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * scale  # fails: closure


def build():
    model = ScaledNorm()
    return model, torch.optim.Adam(model.parameters()), torch.randn(4, 6)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).abs().mean().backward()
    optimizer.step()
