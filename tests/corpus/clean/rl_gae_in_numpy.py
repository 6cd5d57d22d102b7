"""Advantages are computed in numpy: values come down once, advantages go up once."""

import numpy as np
import torch
from torch import nn


def gae(rewards, values, dones, gamma=0.99, lam=0.95):
    out = np.zeros_like(rewards)
    carry = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        carry = delta + gamma * lam * alive * carry
        out[t] = carry
    return out


def build():
    rng = np.random.default_rng(1)
    rollout = {
        "obs": rng.normal(size=(9, 4)).astype(np.float32),
        "rewards": rng.normal(size=8).astype(np.float32),
        "dones": (rng.random(8) < 0.25).astype(np.float32),
    }
    critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    return critic, torch.optim.Adam(critic.parameters()), rollout


def step(critic, optimizer, rollout):
    device = torch.device("cuda:0")
    obs = torch.from_numpy(rollout["obs"]).to(device)
    with torch.no_grad():
        values = critic(obs).cpu().numpy()
    advantages = gae(rollout["rewards"], values, rollout["dones"])
    targets = torch.as_tensor(advantages + values[:-1], device=device)
    spread = float(advantages.std())
    for _ in range(3):
        loss = (critic(obs[:-1]) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item() / max(spread, 1e-8)
