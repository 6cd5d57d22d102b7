"""Resuming: the checkpoint was loaded first, and the model moved afterwards."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def saved():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


checkpoint = saved()
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
model.to(device)


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()
    optimizer.step()  # fails: optimizer
