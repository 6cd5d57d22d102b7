"""A method that the constructor calls last puts an adapter into the network."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tuner:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU()).to(device)
        self.add_adapter()

    def add_adapter(self):
        self.net.add_module("adapter", nn.Linear(8, 8))

    def tune(self, x):
        self.net(x.to(device)).sum().backward()  # fails: loss


def build():
    return (torch.randn(3, 6),)


step = Tuner().tune
