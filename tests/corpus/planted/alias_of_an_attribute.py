"""The data is kept twice, once for the card; the loss takes the other one."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Fit:
    def __init__(self, data):
        self.data = data
        self.data_gpu = data.to(device)
        self.net = nn.Linear(4, 4).to(device)

    def train(self):
        out = self.net(self.data_gpu)
        loss = (out - self.data).square().mean()  # fails: loss
        loss.backward()


def build():
    return ()


step = Fit(torch.rand(3, 4)).train
