"""An agent sends its networks by itself, and keeps what it has seen in host memory; it is an argument of the step."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Agent:
    def __init__(self, size=16):
        self.local = nn.Linear(4, 2).to(device)
        self.optimizer = torch.optim.Adam(self.local.parameters())
        self.states, self.rewards = torch.randn(size, 4), torch.ones(size)
        self.priorities = torch.ones(size)

    def learn(self):
        weights = self.priorities.numpy()
        rows = np.random.choice(len(weights), 5, p=weights / weights.sum())
        states, rewards = (kept[rows].to(device) for kept in (self.states, self.rewards))
        error = F.mse_loss(self.local(states).amax(1), rewards, reduction="none")
        self.optimizer.zero_grad()
        error.mean().backward()
        self.optimizer.step()
        self.priorities[torch.from_numpy(rows)] = error.detach().cpu() + 0.1


def build():
    return (Agent(),)


def step(agent):
    agent.learn()
