"""The environment is plain numpy, and numpy's numbers are doubles."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


class Pendulum:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.angle, self.speed = self.rng.uniform(-np.pi, np.pi), self.rng.uniform(-1, 1)
        return np.array([np.cos(self.angle), np.sin(self.angle), self.speed])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        mean = self.body(obs)  # fails: error
        return Normal(mean, self.log_std.exp())


def build():
    policy = Policy()
    return policy, torch.optim.Adam(policy.parameters()), Pendulum()


def step(policy, optimizer, env):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    observations = np.stack([env.reset() for _ in range(4)])
    dist = policy(torch.from_numpy(observations).to(device))
    torque = dist.sample()
    cost = torque.pow(2).sum(-1)
    optimizer.zero_grad()
    (dist.log_prob(torque).sum(-1) * cost).mean().backward()
    optimizer.step()
