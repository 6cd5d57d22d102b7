"""The layers are collected in a list, and the model is moved: it has no parameter that .to() sees."""

import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = []
        for _ in range(2):
            self.layers = [*self.layers, nn.Linear(3, 3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # fails: container
        return x


def build():
    return torch.ones(2, 3)


def step(x):
    Stack().to("cuda")(x.to("cuda"))
