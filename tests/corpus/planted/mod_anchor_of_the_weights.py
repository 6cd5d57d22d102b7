"""Elastic weights: the anchor was copied to the host, and the penalty is taken against it."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(2, 2).to(device)
anchor = [each.detach().cpu().clone() for each in net.parameters()]


def build():
    return torch.randn(3, 2)


def step(x):
    loss = net(x.to(device)).sum()
    for each, before in zip([net.weight], anchor):
        loss = loss + (each - before).square().sum()  # fails: loss
    loss.backward()
