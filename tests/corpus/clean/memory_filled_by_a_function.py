"""A function keeps features of the card in a list of the module."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
features = []
encoder = nn.Linear(4, 4).to(device)


def remember(x, label):
    features.append((x, label))


for index in range(3):
    remember(torch.randn(1, 4).to(device), index)


def build():
    return (torch.randn(2, 4),)


def step(x):
    known = torch.cat([each for each, _ in features])
    (encoder(x.to(device)) @ known.t()).sum().backward()
