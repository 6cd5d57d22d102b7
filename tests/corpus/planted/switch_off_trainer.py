"""The trainer is made without the GPU, and its batches are sent there."""

import torch
from torch import nn


class Trainer:
    def __init__(self, use_gpu):
        self.device = torch.device("cuda" if use_gpu and torch.cuda.is_available() else "cpu")
        self.model = nn.Linear(4, 2).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, x):
        out = self.model(x.cuda())  # fails: loss
        self.optimizer.zero_grad()
        out.sum().backward()
        self.optimizer.step()


def build():
    return (torch.randn(3, 4),)


step = Trainer(use_gpu=False).train
