"""Deep Q-learning with a deque; the greedy action is taken by numpy's argmax."""

import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class QNet(nn.Module):
    def __init__(self, obs_dim=3, n_actions=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs_dim, 16), nn.ReLU(), nn.Linear(16, n_actions))

    def forward(self, x):
        return self.layers(x)


class Wander:
    def __init__(self):
        self.rng = np.random.RandomState(3)
        self.obs = np.zeros(3, dtype=np.float32)

    def step(self, action):
        self.obs = 0.5 * self.obs + self.rng.randn(3).astype(np.float32)
        return self.obs, float(self.obs[action % 3]), False


def build():
    q, slow = QNet(), QNet()
    slow.load_state_dict(q.state_dict())
    return q, slow, torch.optim.RMSprop(q.parameters(), lr=1e-3), Wander()


def step(q, slow, optimizer, env):
    memory = deque(maxlen=100)
    obs = env.obs
    for _ in range(8):
        with torch.no_grad():
            scores = q(torch.from_numpy(obs).to("cuda"))
        action = int(np.argmax(scores.detach().numpy()))  # fails: numpy
        after, reward, done = env.step(action)
        memory.append((obs, action, reward, after, done))
        obs = after

    obs, actions, rewards, after, done = zip(*random.sample(memory, 4))
    obs = torch.from_numpy(np.stack(obs)).cuda()
    after = torch.from_numpy(np.stack(after)).cuda()
    rewards = torch.tensor(rewards, device="cuda")
    actions = torch.tensor(actions).unsqueeze(1)
    picked = q(obs).gather(1, actions).squeeze(1)  # fails: factory
    with torch.no_grad():
        goal = rewards + 0.9 * slow(after).max(dim=1)[0]
    optimizer.zero_grad()
    F.smooth_l1_loss(picked, goal).backward()
    optimizer.step()
