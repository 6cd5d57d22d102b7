"""The agent keeps its memory on the host and sends what it draws, all but the rewards."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Agent:
    def __init__(self, size=16):
        self.local, self.target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
        self.optimizer = torch.optim.Adam(self.local.parameters())
        self.states, self.actions = torch.randn(size, 4), torch.zeros(size, dtype=torch.long)
        self.rewards = torch.ones(size)

    def learn(self):
        rows = torch.randint(16, (5,))
        states, actions = self.states[rows].to(device), self.actions[rows].to(device)
        with torch.no_grad():
            wanted = self.rewards[rows] + 0.9 * self.target(states).amax(1)  # fails: loss
        chosen = self.local(states).gather(1, actions[:, None]).squeeze(1)
        self.optimizer.zero_grad()
        F.mse_loss(chosen, wanted).backward()
        self.optimizer.step()


def build():
    return (Agent(),)


def step(agent):
    agent.learn()
