"""Fine-tuning in a class: the new head comes after the move."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10)).to(device)
        self.model[2] = nn.Linear(8, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, x):
        out = self.model(x.to(device))  # fails: loss
        self.optimizer.zero_grad()
        out.sum().backward()
        self.optimizer.step()


def build():
    return (torch.randn(3, 6),)


step = Trainer().train
