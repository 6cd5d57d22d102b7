"""Advantage actor-critic: the values come one by one and are gathered into one tensor at the end."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.pi, self.v = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def build():
    model = ActorCritic()
    return model, torch.optim.RMSprop(model.parameters(), lr=7e-4), np.random.default_rng(11)


def step(model, optimizer, rng):
    dev = torch.device("cuda")
    values, log_probs, entropies, rewards = [], [], [], []
    for _ in range(5):
        obs = torch.tensor(rng.random(4), dtype=torch.float32, device=dev)
        dist, value = model(obs)
        action = dist.sample()
        rewards.append(1.0 if int(action) == 0 else 0.0)
        values.append(value)
        log_probs.append(dist.log_prob(action))
        entropies.append(dist.entropy())

    returns, running = [], 0.0
    for reward in rewards[::-1]:
        running = reward + 0.95 * running
        returns.insert(0, running)
    returns = torch.tensor(returns, device=dev)
    baseline = torch.tensor([v.detach() for v in values])
    advantage = returns - baseline  # fails: factory

    coefficient = torch.linspace(0.02, 0.01, len(entropies))
    bonus = (coefficient * torch.stack(entropies)).mean()  # fails: factory
    policy_loss = -(torch.stack(log_probs) * advantage).mean()
    value_loss = F.mse_loss(torch.stack(values), returns)
    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss - bonus).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if norm < 1e3:
        optimizer.step()
