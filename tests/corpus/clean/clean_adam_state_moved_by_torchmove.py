"""Adam has state from the CPU, and it goes along."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x.to("cuda")), y.to("cuda")).backward()
    optimizer.step()
