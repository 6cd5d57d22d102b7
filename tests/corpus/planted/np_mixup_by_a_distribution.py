"""Mixing weights from a distribution whose parameters are plain numbers: drawn on the host."""

import torch
from torch import nn
from torch.distributions import Beta


def build():
    return nn.Linear(5, 2), torch.randn(4, 5)


def step(model, x):
    x = x.to("cuda")
    weights = Beta(0.4, 0.4).sample((4, 1))
    model(weights * x + (1 - weights) * x.flip(0))  # fails: factory
