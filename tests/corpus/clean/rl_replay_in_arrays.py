"""Off-policy learning with a replay memory of numpy's arrays, which the step fills and samples."""

import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ReplayMemory:
    def __init__(self, size, width):
        self.states = np.zeros((size, width), dtype=np.float32)
        self.rewards = np.zeros(size, dtype=np.float32)
        self.filled = 0

    def push(self, state, reward):
        self.states[self.filled % len(self.rewards)] = state
        self.rewards[self.filled % len(self.rewards)] = reward
        self.filled += 1

    def sample(self, count):
        chosen = np.random.randint(0, self.filled, count)
        return torch.from_numpy(self.states[chosen]), torch.as_tensor(self.rewards[chosen])


memory = ReplayMemory(8, 4)
critic = nn.Linear(4, 1).to(device)
optimizer = torch.optim.Adam(critic.parameters())


def build():
    return (np.ones(4, dtype=np.float32),)


def step(state):
    for _ in range(4):
        memory.push(state, float(state.sum()))
        state = state * 0.5
    states, rewards = (each.to(device) for each in memory.sample(3))
    loss = (critic(states).squeeze(-1) - rewards).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
