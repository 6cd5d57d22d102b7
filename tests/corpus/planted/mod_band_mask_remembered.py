"""Local attention: every position sees its neighbours. The band is the same each time, so it is remembered."""

from functools import lru_cache

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


@lru_cache(maxsize=16)
def outside_band(length, reach=2):
    place = torch.arange(length)
    return (place[:, None] - place[None, :]).abs() > reach


class LocalLayer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, num_heads=2, batch_first=True)
        self.after = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, x):
        h = self.before(x)
        h, weights = self.attention(h, h, h, attn_mask=outside_band(x.size(1)))  # fails: cache
        x = x + h
        return x + self.after(x), weights


def build():
    layer = LocalLayer()
    with torch.no_grad():
        layer(torch.zeros(1, 6, 8))  # shapes are right
    return layer, torch.optim.AdamW(layer.parameters(), lr=1e-4), torch.randn(3, 6, 8)


def step(layer, optimizer, x):
    out, weights = layer(x.to("cuda"))
    entropy = -(weights * weights.clamp(min=1e-9).log()).sum(-1).mean()
    loss = out.square().mean() + 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
