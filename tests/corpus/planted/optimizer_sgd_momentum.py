"""Warm up on the CPU, then move the model and go on."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


def build():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x.to("cuda")), y.to("cuda")).backward()
    optimizer.step()  # fails: optimizer
