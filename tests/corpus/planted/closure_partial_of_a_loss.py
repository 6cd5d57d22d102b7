"""The class weights are in a partial of the loss."""

import functools

import torch
from torch import nn

criterion = functools.partial(nn.functional.cross_entropy, weight=torch.tensor([1.0, 2.0, 0.5]))


def build():
    return nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])


def step(model, x, y):
    loss = criterion(model(x.cuda()), y.cuda())  # fails: closure
    loss.backward()
