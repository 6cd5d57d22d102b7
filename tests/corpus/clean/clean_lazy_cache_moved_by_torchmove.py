"""A table cached by a dry run travels with the model."""

import torch
from torch import nn


class LazyDecay(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self._cache = {}

    def decay(self, x):
        n = x.size(1)
        if n not in self._cache:
            self._cache[n] = torch.exp(-torch.arange(n, device=x.device).float()).unsqueeze(-1)
        return self._cache[n]

    def forward(self, x):
        return self.proj(x) * self.decay(x)


def build():
    model = LazyDecay()
    model(torch.zeros(1, 7, 4))
    return model, torch.randn(2, 7, 4)


def step(model, x):
    model(x.to("cuda")).mean().backward()
