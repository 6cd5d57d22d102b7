"""Old code asks by isinstance whether a tensor is on the CPU, and makes what it adds there or on the card."""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)


def step(model, inputs):
    scores = model(inputs.to("cuda"))
    if isinstance(scores, torch.FloatTensor):
        bonus = torch.FloatTensor([1.0, 0.0])
    else:
        bonus = torch.cuda.FloatTensor([1.0, 0.0])
    assert isinstance(inputs, torch.FloatTensor)
    return (scores + bonus).sum()
