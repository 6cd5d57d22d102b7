"""Sections are cut at indices that the CPU reads."""

import torch
from torch import nn


def build():
    model = nn.GRU(3, 4)
    return model, torch.randn(7, 2, 3), torch.tensor([2, 5])


def step(model, x, cuts):
    out, _ = model(x.to("cuda"))
    return sum(part.square().mean() for part in torch.tensor_split(out, cuts)).backward()
