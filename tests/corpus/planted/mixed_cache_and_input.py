"""Windowed attention with a cached bias, and targets straight from the loader."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Windowed(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.bias_cache = {}

    def bias(self, n, reach=2):
        if n not in self.bias_cache:
            far = (torch.arange(n)[:, None] - torch.arange(n)).abs() > reach
            self.bias_cache[n] = torch.zeros(n, n).masked_fill(far, -1e4)
        return self.bias_cache[n]

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.add(q @ k.transpose(1, 2), self.bias(x.size(1)))  # fails: cache
        return scores.softmax(-1) @ v


def build():
    model = Windowed()
    model(torch.randn(1, 5, 4))
    return model, (torch.randn(2, 5, 4), torch.randn(2, 5, 4))


def step(model, batch):
    x, target = batch
    loss = F.mse_loss(model(x.cuda()), target)  # fails: input
    loss.backward()
