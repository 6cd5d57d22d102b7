"""A rollout storage with a method `to`, sent once at the top, as in many actor-critic programs."""

import torch
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class RolloutStorage:
    def __init__(self, steps, size):
        self.obs = torch.zeros(steps + 1, size)
        self.returns = torch.zeros(steps + 1, 1)
        self.step = 0

    def to(self, device):
        self.obs = self.obs.to(device)
        self.returns = self.returns.to(device)

    def insert(self, obs, value):
        self.obs[self.step + 1].copy_(obs)
        self.returns[self.step + 1].copy_(value)


critic = nn.Linear(4, 1)
critic.to(device)
rollouts = RolloutStorage(5, 4)
rollouts.to(device)
optimizer = torch.optim.RMSprop(critic.parameters(), 7e-4)


def build():
    return (torch.rand(4),)


def step(obs):
    rollouts.insert(obs, critic(obs.to(device)).detach())
    advantages = rollouts.returns - critic(rollouts.obs)
    optimizer.zero_grad()
    advantages.square().mean().backward()
    optimizer.step()
