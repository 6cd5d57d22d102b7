"""Every setting is in the config, the device too."""

from dataclasses import dataclass

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


@dataclass
class Config:
    width: int = 6
    noise: float = 0.1
    device: str = "cpu"


class NoisyLinear(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(config.width, config.width)

    def forward(self, x):
        noise = torch.randn(x.shape, device=self.config.device)
        return self.linear(x + self.config.noise * noise)  # fails: stale-device


def build():
    return NoisyLinear(Config()), torch.randn(3, 6)


def step(model, x):
    model(x.cuda()).mean().backward()
