"""The targets are taken to the host by name, for a metric that is gone."""

import torch
from torch import nn


def build():
    return nn.Linear(5, 2), torch.randn(3, 5), torch.randn(3, 2)


def step(model, x, y):
    y = y.to("cpu")
    (model(x.to("cuda")) - y).square().mean().backward()  # fails: hard-coded
