"""A replay memory is filled with transitions that are on the card."""

import random
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, count):
        return random.sample(self.memory, count)


policy = nn.Linear(2, 3).to(device)
memory = ReplayMemory(9)
for _ in range(4):
    state = torch.randn(1, 2, device=device)
    memory.push(state, torch.zeros(1, 1, dtype=torch.long, device=device), torch.ones(1, device=device))


def build():
    return ()


def step():
    batch = Transition(*zip(*memory.sample(2)))
    values = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    (values.squeeze(1) - torch.cat(batch.reward)).square().mean().backward()
