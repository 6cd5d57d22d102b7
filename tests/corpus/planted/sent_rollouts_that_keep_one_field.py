"""The storage of rollouts has a method `to`; in it, one of the tensors was sent and not kept."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Rollouts:
    def __init__(self, steps, size):
        self.obs = torch.zeros(steps, size)
        self.rewards = torch.zeros(steps, 1)

    def to(self, device):
        self.obs = self.obs.to(device)
        self.rewards.to(device)


critic = nn.Linear(4, 1).to(device)
optimizer = torch.optim.RMSprop(critic.parameters(), 7e-4)
rollouts = Rollouts(5, 4)
rollouts.to(device)


def build():
    return (torch.rand(1),)


def step(reward):
    rollouts.rewards[0].copy_(reward)
    loss = (rollouts.rewards - critic(rollouts.obs)).square().mean()  # fails: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
