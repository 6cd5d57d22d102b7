"""Single-file PPO: the storage tensors are allocated once at the top of the update."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class VecEnv:
    def __init__(self, n):
        self.n, self.rng = n, np.random.default_rng(0)

    def observe(self):
        return self.rng.normal(size=(self.n, 3)).astype(np.float32)

    def step(self, action):
        return self.observe(), (action == 1).astype(np.float32), (self.rng.random(self.n) < 0.2).astype(np.float32)


def build():
    agent = nn.ModuleDict({"actor": nn.Linear(3, 2), "critic": nn.Linear(3, 1)})
    return agent, torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5), VecEnv(2)


def step(agent, optimizer, envs, length=4, gamma=0.99, lam=0.95):
    obs = torch.zeros(length, envs.n, 3).to(device)
    actions, dones, values = (torch.zeros(length, envs.n).to(device) for _ in range(3))
    logprobs = torch.zeros(length, envs.n)
    rewards = torch.zeros(length, envs.n)
    now, done = torch.Tensor(envs.observe()).to(device), torch.zeros(envs.n).to(device)
    for t in range(length):
        obs[t], dones[t] = now, done
        with torch.no_grad():
            policy = Categorical(logits=agent["actor"](now))
            actions[t] = policy.sample()
            values[t] = agent["critic"](now).flatten()
            logprobs[t] = policy.log_prob(actions[t])
        seen, reward, over = envs.step(actions[t].cpu().numpy())
        rewards[t] = torch.tensor(reward)
        now, done = torch.Tensor(seen).to(device), torch.Tensor(over).to(device)

    with torch.no_grad():
        ahead, alive, last = agent["critic"](now).flatten(), 1.0 - done, 0.0
        advantages = torch.zeros_like(values)
        for t in reversed(range(length)):
            delta = rewards[t] + gamma * ahead * alive - values[t]  # fails: factory
            advantages[t] = last = delta + gamma * lam * alive * last
            ahead, alive = values[t], 1.0 - dones[t]

    for _ in range(2):
        fresh = Categorical(logits=agent["actor"](obs.reshape(-1, 3))).log_prob(actions.reshape(-1))
        ratio = (fresh - logprobs.reshape(-1)).exp()  # fails: factory
        gain = advantages.reshape(-1)
        loss = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
