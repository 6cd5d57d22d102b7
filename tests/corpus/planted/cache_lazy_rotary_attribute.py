"""The tables are made at the first call, on the device of that call, and kept."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class LazyRotary(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.dim = dim
        self.proj = nn.Linear(dim, dim)
        self._angle_cache = None

    def angles(self, x):
        if self._angle_cache is None or self._angle_cache.size(0) < x.size(1):
            time = torch.arange(x.size(1), device=x.device).float()
            rate = 1e4 ** (-torch.arange(self.dim, device=x.device) / self.dim)
            self._angle_cache = torch.outer(time, rate).cos()
        return self._angle_cache[: x.size(1)]

    def forward(self, x):
        return self.proj(x) * self.angles(x)  # fails: cache


def build():
    model = LazyRotary()
    with torch.no_grad():
        model(torch.zeros(1, 10, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 7, 4)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).mean().backward()
    optimizer.step()
