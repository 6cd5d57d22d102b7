"""Building the mask every time is wasteful, so lru_cache remembers it."""

from functools import lru_cache

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


@lru_cache(maxsize=8)
def causal_bias(length):
    return torch.full((length, length), float("-inf")).triu(1)


class TinyDecoder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2)
        scores = scores + causal_bias(x.size(1))  # fails: cache
        return scores.softmax(-1) @ v


def build():
    model = TinyDecoder()
    x = torch.randn(2, 5, 8)
    model(x)  # a dry run, to see the shapes
    return model, x


def step(model, x):
    model(x.to("cuda")).sum().backward()
