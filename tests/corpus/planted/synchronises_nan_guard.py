"""A step with a bad loss is skipped."""

import torch
from torch import nn

OPTIONS = {"data": "real"}


def build():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 3)


def step(model, optimizer, x):
    loss = model(x.to("cuda")).square().mean()
    if torch.isnan(loss):  # fails: synchronizes
        return
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
