"""A function sends the backbone and replaces its head before it returns it."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build_model(classes):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10)).to(device)
    net[-1] = nn.Linear(8, classes)
    return net


model = build_model(3)


def build():
    return (torch.randn(3, 6),)


def step(x):
    model(x.to(device)).sum().backward()  # fails: loss
