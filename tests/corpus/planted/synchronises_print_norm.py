"""A print left over from looking at the gradients."""

import torch
from torch import nn

OPTIONS = {"data": "real"}


def build():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters()), torch.randn(4, 3)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).square().sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print("gradient norm", norm)  # fails: synchronizes
    optimizer.step()
