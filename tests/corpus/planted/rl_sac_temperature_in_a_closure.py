"""Soft actor-critic: the temperature hides behind a function, so that no one writes log_alpha.exp() twice."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

OPTIONS = {"moved_by": "to"}


def make_temperature(start):
    log_alpha = torch.full((1,), math.log(start))

    def temperature():
        return log_alpha.exp()

    return temperature


class SAC(nn.Module):
    def __init__(self, obs=4, act=2):
        super().__init__()
        self.actor = nn.Linear(obs, 2 * act)
        self.q1, self.q2 = nn.Linear(obs + act, 1), nn.Linear(obs + act, 1)
        self.temperature = make_temperature(0.2)

    def sample(self, obs):
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        normal = Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        squashed = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - squashed.pow(2) + 1e-6)
        return squashed, log_prob.sum(1, keepdim=True)

    def soft_value(self, obs):
        action, log_prob = self.sample(obs)
        pair = torch.cat([obs, action], 1)
        smallest = torch.min(self.q1(pair), self.q2(pair))
        return smallest - self.temperature() * log_prob  # fails: closure


def build():
    agent = SAC()
    batch = (torch.randn(5, 4), torch.randn(5, 2), torch.randn(5, 1), torch.randn(5, 4), torch.zeros(5, 1))
    return agent, torch.optim.Adam(agent.parameters(), lr=3e-4), batch


def step(agent, optimizer, batch):
    obs, action, reward, after, done = [b.to("cuda") for b in batch]
    with torch.no_grad():
        target = reward + 0.99 * (1 - done) * agent.soft_value(after)
    pair = torch.cat([obs, action], 1)
    critic_loss = F.mse_loss(agent.q1(pair), target) + F.mse_loss(agent.q2(pair), target)
    optimizer.zero_grad()
    (critic_loss - agent.soft_value(obs).mean()).backward()
    optimizer.step()
