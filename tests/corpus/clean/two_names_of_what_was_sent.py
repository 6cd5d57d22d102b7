"""The data is sent first, and then has two names."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Fit:
    def __init__(self, data):
        data = data.to(device)
        self.data = data
        self.view = self.data
        self.net = nn.Linear(4, 4).to(device)

    def train(self):
        (self.net(self.view) - self.data).square().mean().backward()


def build():
    return ()


step = Fit(torch.rand(3, 4)).train
