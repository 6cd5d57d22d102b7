"""A partial of the loss has its class weights on the card."""

import functools

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
weight = torch.tensor([1.0, 2.0, 0.5]).to(device)
criterion = functools.partial(nn.functional.cross_entropy, weight=weight)


def build():
    return nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])


def step(model, x, y):
    criterion(model(x.to(device)), y.to(device)).backward()
