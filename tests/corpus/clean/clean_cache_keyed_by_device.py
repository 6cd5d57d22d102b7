"""The mask cache is keyed by length and device, so a move makes a new one."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}
_CACHE = {}


def causal_bias(length, device):
    key = (length, str(device))
    if key not in _CACHE:
        _CACHE[key] = torch.full((length, length), float("-inf"), device=device).triu(1)
    return _CACHE[key]


class Decoder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) + causal_bias(x.size(1), x.device)
        return scores.softmax(-1) @ v


def build():
    model = Decoder()
    model(torch.randn(1, 5, 8))
    return model, torch.randn(2, 5, 8)


def step(model, x):
    model(x.to("cuda")).sum().backward()
