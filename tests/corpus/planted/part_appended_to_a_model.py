"""One more layer is appended, after the model was sent."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
model.append(nn.Linear(4, 2))


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()  # fails: loss
