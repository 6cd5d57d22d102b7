"""A head and a tail that are sent before they are put into a model on the card."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(4, 4)).to(device)
model.append(nn.Linear(4, 3).to(device))
tail = nn.Linear(3, 2).to(device)
model.add_module("tail", tail)


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()
