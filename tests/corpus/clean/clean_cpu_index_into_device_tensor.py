"""Rows are picked by a permutation drawn on the CPU."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    model = nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])


def step(model, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    order = torch.randperm(x.size(0))
    for rows in order.split(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
