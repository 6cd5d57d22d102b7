"""Negative activations are replaced by drawn ones, drawn on the host."""

import torch
from torch import nn


def build():
    return nn.Linear(3, 3), torch.ones(2, 3)


def step(model, x):
    y = model(x.to("cuda")).detach()
    negative = y <= y.max()
    y[negative] = torch.rand(6)  # fails: factory
    y[0, 1:] = torch.rand(2)
