"""REINFORCE: discounted returns are easiest in numpy, and from_numpy brings them back."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    def reset(self):
        self.place, self.time = 0, 0
        return self.look()

    def look(self):
        return np.array([self.place / 5, self.time / 10], dtype=np.float32)

    def step(self, action):
        self.place += 1 if action == 1 else -1
        self.time += 1
        return self.look(), 1.0 if self.place > 2 else -0.1, self.place > 2 or self.time >= 8


def build():
    policy = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    return policy, torch.optim.Adam(policy.parameters(), lr=1e-2), Corridor()


def step(policy, optimizer, env):
    device = next(policy.parameters()).device
    obs, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(torch.from_numpy(obs).unsqueeze(0).to(device)))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        obs, reward, done = env.step(action.item())
        rewards.append(reward)

    returns, total = np.zeros(len(rewards), dtype=np.float32), 0.0
    for i in reversed(range(len(rewards))):
        total = rewards[i] + 0.99 * total
        returns[i] = total
    returns = torch.from_numpy(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)

    loss = -(torch.cat(log_probs) * returns).sum()  # fails: factory
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
