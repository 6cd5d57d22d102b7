"""Random network distillation: observations are whitened with running statistics kept in numpy."""

import numpy as np
import torch
from torch import nn


class RunningMeanStd:
    def __init__(self, shape):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def update(self, x):
        total = self.count + len(x)
        delta = x.mean(axis=0) - self.mean
        self.mean = self.mean + delta * len(x) / total
        self.var = (self.var * self.count + x.var(axis=0) * len(x) + delta**2 * self.count * len(x) / total) / total
        self.count = total


class RND(nn.Module):
    def __init__(self):
        super().__init__()
        self.predictor = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.target = nn.Linear(6, 4).requires_grad_(False)

    def forward(self, x):
        return (self.predictor(x) - self.target(x)).pow(2).mean(dim=1)


def build():
    rnd = RND()
    return rnd, torch.optim.Adam(rnd.predictor.parameters(), lr=1e-3), RunningMeanStd(6), torch.randn(9, 6)


def step(rnd, optimizer, stats, next_obs, proportion=0.75):
    stats.update(next_obs.numpy())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    next_obs = next_obs.to(device)
    centred = next_obs - torch.from_numpy(stats.mean).float()  # fails: factory
    scale = torch.FloatTensor(np.sqrt(stats.var))
    whitened = (centred / scale).clip(-5, 5)  # fails: factory

    bonus = rnd(whitened)
    keep = (torch.rand(len(bonus)) < proportion).float()
    loss = (bonus * keep).sum()  # fails: factory
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
