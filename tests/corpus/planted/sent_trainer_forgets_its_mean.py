"""A trainer that sends its model and keeps the running mean of the rewards where it made it."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = nn.Linear(4, 4).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.mean = torch.zeros(4)

    def train_step(self, x):
        out = self.model(x.to(self.device))
        loss = (out - self.mean).square().mean()  # fails: loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def build():
    return (torch.rand(3, 4),)


step = Trainer().train_step
