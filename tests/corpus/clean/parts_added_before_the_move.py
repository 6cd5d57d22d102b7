"""Layers are appended and replaced, and then the whole is sent."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 4))
        self.grow()
        self.model[0] = nn.Linear(4, 4)
        self.model.to(device)

    def grow(self):
        self.model.append(nn.Linear(4, 2))

    def train(self, x):
        self.model(x.to(device)).sum().backward()


def build():
    return (torch.randn(3, 4),)


step = Trainer().train
