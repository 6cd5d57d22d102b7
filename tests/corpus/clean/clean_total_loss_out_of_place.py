"""A total that starts as a 0-dim CPU tensor is rebound, not added to in place."""

import torch
from torch import nn


def build():
    return nn.Linear(3, 2), [torch.randn(2, 3), torch.randn(4, 3)]


def step(model, batches):
    total = torch.tensor(0.0)
    for x in batches:
        total = total + model(x.cuda()).abs().mean()
    total.backward()
