"""Whoever wrote this names the object `s`."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(s):
        s.net = nn.Linear(4, 2).to(device)
        s.optimizer = torch.optim.SGD(s.net.parameters(), lr=0.1)
        s.shift = torch.zeros(2).to(device)

    def fit(s, x):
        s.optimizer.zero_grad()
        (s.net(x.to(device)) + s.shift).square().mean().backward()
        s.optimizer.step()


trainer = Trainer()


def build():
    return torch.randn(3, 4)


def step(x):
    trainer.fit(x)
