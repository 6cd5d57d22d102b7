"""Positions go to the device of the frequencies, and those are on the CPU; the configuration has a device, too."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    width: int = 4
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


config = Config()


def frequencies(width, length):
    base = 1.0 / 10.0 ** torch.arange(0, width).float()
    positions = torch.arange(length, device=base.device)
    return torch.outer(positions, base)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(config.width, config.width)
        self.table = frequencies(config.width, 5)

    def forward(self, x):
        return self.line(x) + self.table[: x.size(0)]  # fails: attribute


model = Net().to(config.device)


def build():
    return (torch.randn(3, config.width),)


def step(x):
    model(x.to(config.device)).sum().backward()
