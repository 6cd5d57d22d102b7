"""REINFORCE over several episodes, with the mean return as the baseline and an early stop."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Bernoulli


class Balance:
    def reset(self, seed):
        self.state = np.random.RandomState(seed).uniform(-0.1, 0.1, size=2)
        return self.state

    def step(self, push):
        x, v = self.state
        v += 0.1 * (1 if push else -1) + 0.05 * x
        self.state = np.array([x + v, v])
        return self.state, 1.0, bool(abs(self.state[0]) > 1)


def build():
    policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    return Balance(), policy, torch.optim.Adam(policy.parameters(), lr=0.02)


def discounted(rewards, gamma=0.98):
    out = []
    for reward in reversed(rewards):
        out.append(reward + gamma * (out[-1] if out else 0.0))
    return out[::-1]


def step(env, policy, optimizer, episodes=4, longest=12):
    history = []
    for episode in range(episodes):
        obs, done = env.reset(episode), False
        log_probs, rewards = [], []
        while not done and len(rewards) < longest:
            state = torch.from_numpy(obs).float().to("cuda")
            dist = Bernoulli(logits=policy(state))
            push = dist.sample()
            log_probs.append(dist.log_prob(push))
            obs, reward, done = env.step(push.item() > 0.5)
            rewards.append(reward)
        weight = torch.tensor(discounted(rewards)).to("cuda")
        loss = -torch.cat(log_probs).dot(weight - weight.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(len(rewards))
        if np.mean(history) >= longest:
            break
    return history
