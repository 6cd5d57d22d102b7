"""An agent normalises observations by running statistics, which are kept in an object that is no module."""

import torch
from torch import nn


class Statistics:
    def __init__(self, width):
        self.mean, self.count = torch.zeros(width), 1e-4

    def update(self, x):
        change = x.mean(0) - self.mean  # fails: container
        self.count += len(x)
        self.mean = self.mean + change * len(x) / self.count


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.seen = nn.Linear(3, 2), Statistics(3)

    def forward(self, x):
        self.seen.update(x.detach())
        return self.policy(x - self.seen.mean)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
agent = Agent().to(device)


def build():
    return torch.randn(5, 3)


def step(x):
    agent(x.to(device)).square().mean().backward()
