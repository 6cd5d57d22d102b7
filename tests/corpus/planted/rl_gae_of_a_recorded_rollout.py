"""Advantages are computed backwards over a recorded rollout; the explained variance goes to the log."""

import numpy as np
import torch
from torch import nn


def gae(reward, value, last_value, done, gamma=0.99, lam=0.95):
    advantage, running = torch.zeros_like(value), 0.0
    following = last_value
    for t in range(reward.shape[0] - 1, -1, -1):
        discount = gamma * (1.0 - done[t])
        delta = reward[t] + discount * following - value[t]  # fails: input
        running = delta + discount * lam * running
        advantage[t] = running
        following = value[t]
    return advantage


def explained_variance(guess, truth):
    return 1.0 - np.var(truth - guess) / (np.var(truth) + 1e-8)


def build():
    rollout = {"obs": torch.randn(6, 3, 5), "reward": torch.rand(5, 3), "done": (torch.rand(5, 3) < 0.2).float()}
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    return critic, torch.optim.Adam(critic.parameters(), lr=1e-3), rollout


def step(critic, optimizer, rollout):
    obs = rollout["obs"].to("cuda")
    reward = rollout["reward"].to("cuda")
    with torch.no_grad():
        value = critic(obs).squeeze(-1)
        advantage = gae(reward, value[:-1], value[-1], rollout["done"])
        target = advantage + value[:-1]
    loss = (critic(obs[:-1]).squeeze(-1) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    guess = value[:-1].cpu().numpy()
    truth = target.detach().numpy()  # fails: numpy
    print(f"explained variance {explained_variance(guess, truth):.3f}")
