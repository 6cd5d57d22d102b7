"""Deep Q-learning with a deque of numpy transitions, stacked and sent over when they are drawn."""

import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Grid:
    cell = 0

    def obs(self):
        return np.eye(9, dtype=np.float32)[self.cell]

    def step(self, action):
        self.cell = (self.cell + (1, -1)[action]) % 9
        return self.obs(), float(self.cell == 3), self.cell == 3


def build():
    def net():
        return nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 2))

    online, target = net(), net()
    target.load_state_dict(online.state_dict())
    return online, target, torch.optim.Adam(online.parameters(), lr=5e-4), Grid()


def step(online, target, optimizer, env, epsilon=0.3, batch_size=8):
    device = next(online.parameters()).device
    memory, obs, losses = deque(maxlen=50), env.obs(), []
    for _ in range(20):
        if random.random() < epsilon:
            action = random.randrange(2)
        else:
            with torch.no_grad():
                action = online(torch.as_tensor(obs, device=device).unsqueeze(0)).argmax(1).item()
        after, reward, done = env.step(action)
        memory.append((obs, action, reward, after, done))
        obs = after
        if len(memory) < batch_size:
            continue
        states, actions, rewards, following, over = map(np.array, zip(*random.sample(memory, batch_size)))
        states = torch.from_numpy(states).to(device)
        actions = torch.from_numpy(actions).long().to(device)
        rewards = torch.as_tensor(rewards, dtype=torch.float32, device=device)
        alive = torch.as_tensor(~over, device=device)
        with torch.no_grad():
            best = target(torch.from_numpy(following).to(device)).amax(1)
        guess = online(states).gather(1, actions[:, None])[:, 0]
        loss = F.smooth_l1_loss(guess, rewards + 0.9 * best * alive)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)
