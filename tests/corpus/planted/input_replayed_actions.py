"""Deep Q-learning: the replay buffer's sample is a tuple of tensors."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    online, target = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)
    sample = (torch.randn(6, 4), torch.randint(0, 2, (6, 1)), torch.randn(6), torch.randn(6, 4))
    return online, target, torch.optim.RMSprop(online.parameters()), sample


def step(online, target, optimizer, sample):
    state, action, reward, after = sample
    state, after = state.cuda(), after.cuda()
    value = online(state).gather(1, action).squeeze(1)  # fails: input
    with torch.no_grad():
        best = target(after).max(1).values
        goal = reward + 0.99 * best  # fails: input
    optimizer.zero_grad()
    F.smooth_l1_loss(value, goal).backward()
    optimizer.step()
