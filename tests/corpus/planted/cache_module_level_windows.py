"""Hann windows are shared by every front end in the process."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}
_WINDOW_CACHE = {}


def hann(size):
    if size not in _WINDOW_CACHE:
        _WINDOW_CACHE[size] = torch.hann_window(size)
    return _WINDOW_CACHE[size]


class FrontEnd(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.size = size
        self.mix = nn.Linear(size, 4)

    def forward(self, wave):
        frames = wave.unfold(-1, self.size, self.size // 2)
        frames = frames * hann(self.size)  # fails: cache
        return self.mix(frames)


def build():
    model = FrontEnd()
    model(torch.randn(1, 32))
    return model, {"wave": torch.randn(2, 32)}


def step(model, batch):
    model(batch["wave"].cuda()).pow(2).mean().backward()
