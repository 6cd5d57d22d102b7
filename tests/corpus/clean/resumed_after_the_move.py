"""Resuming in the right order: what load_state_dict reads goes to where the parameters are."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def saved():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
model.to(device)
optimizer.load_state_dict(saved())


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()
    optimizer.step()
