"""Policy gradient over one short episode; the policy is a global, and its device is asked of its parameters."""

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Normal

policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
policy.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
log_std = torch.full((1,), -0.5, device=next(policy.parameters()).device, requires_grad=True)
optimizer = optim.Adam([*policy.parameters(), log_std], lr=1e-2)
eps = np.finfo(np.float32).eps.item()


def device_of(module):
    return next(module.parameters()).device


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0).to(device_of(policy))
    dist = Normal(policy(state), log_std.exp())
    action = dist.sample()
    return action.item(), dist.log_prob(action).sum()


def build():
    return np.array([0.1, -0.2, 0.3]), 5


def step(state, length):
    log_probs, rewards = [], []
    for _ in range(length):
        action, log_prob = select_action(state)
        state = 0.9 * state + 0.1 * np.tanh(action)
        log_probs.append(log_prob)
        rewards.append(-float(np.abs(state).sum()))
    returns = np.cumsum(rewards[::-1])[::-1].copy()
    returns = torch.tensor(returns, dtype=torch.float32, device=device_of(policy))
    returns = (returns - returns.mean()) / (returns.std() + eps)
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return sum(rewards)
