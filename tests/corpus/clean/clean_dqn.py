"""Deep Q-learning with the whole sample moved."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    online, target = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)
    sample = (torch.randn(6, 4), torch.randint(0, 2, (6, 1)), torch.randn(6), torch.randn(6, 4), torch.zeros(6))
    return online, target, torch.optim.RMSprop(online.parameters()), sample


def step(online, target, optimizer, sample):
    state, action, reward, after, done = (t.to("cuda") for t in sample)
    value = online(state).gather(1, action).squeeze(1)
    with torch.no_grad():
        goal = reward + 0.99 * (1 - done) * target(after).max(1).values
        optimizer.zero_grad()
    F.smooth_l1_loss(value, goal).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.mul_(0.99).add_(fast, alpha=0.01)
