"""TD3 where the noise takes shape and device from the action, and the bounds come from the space."""

from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Actor(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor((high - low) / 2, dtype=torch.float32))
        self.register_buffer("bias", torch.tensor((high + low) / 2, dtype=torch.float32))

    def forward(self, x):
        return self.fc(x).tanh() * self.scale + self.bias


def build():
    low, high = np.array([-1.0, -2.0]), np.array([1.0, 2.0])
    actor, critic = Actor(low, high), nn.Bilinear(4, 2, 1)
    data = {"s": torch.randn(16, 4), "a": torch.rand(16, 2), "r": torch.randn(16), "t": torch.zeros(16)}
    return actor, deepcopy(actor), critic, deepcopy(critic), torch.optim.Adam(critic.parameters()), data


def step(actor, slow_actor, critic, slow_critic, optimizer, data):
    for rows in np.array_split(np.random.permutation(16), 4):
        s, a, r, t = (data[key][rows].to("cuda") for key in "sart")
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5) * slow_actor.scale
            smoothed = (slow_actor(s) + noise).clamp(slow_actor.bias - 1, slow_actor.bias + 1)
            goal = r + (1 - t) * 0.99 * slow_critic(s, smoothed).squeeze(-1)
        loss = F.mse_loss(critic(s, a).squeeze(-1), goal)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(critic.parameters(), max_norm=10.0)
        if not torch.isfinite(norm) or norm > 1e4:
            continue
        optimizer.step()
    for slow, fast in zip(slow_critic.parameters(), critic.parameters()):
        slow.data.copy_(0.995 * slow.data + 0.005 * fast.data)
