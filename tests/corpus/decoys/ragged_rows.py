"""Rows of several lengths as a jagged tensor; what torch keeps of their lengths is on the CPU."""

import torch
from torch import nn


def build():
    return nn.Linear(4, 2), torch.randn(2, 4), torch.randn(3, 4)


def step(model, first, second):
    rows = torch.nested.nested_tensor([first.to("cuda"), second.to("cuda")], layout=torch.jagged)
    return model(rows).values().sum()
