"""DDPG with a replay buffer of CPU tensors whose samples are sent to the device it was told."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Replay:
    def __init__(self, capacity, obs_dim, act_dim, device):
        self.capacity, self.device, self.size, self.head = capacity, device, 0, 0
        self.obs = torch.zeros(capacity, obs_dim)
        self.act = torch.zeros(capacity, act_dim)
        self.rew = torch.zeros(capacity, 1)

    def add(self, obs, act, rew):
        self.obs[self.head] = torch.from_numpy(obs)
        self.act[self.head] = torch.from_numpy(act)
        self.rew[self.head] = rew
        self.head = (self.head + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n):
        rows = torch.randint(0, self.size, (n,))
        return tuple(field[rows].to(self.device) for field in (self.obs, self.act, self.rew))


def build():
    actor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
    critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizers = (torch.optim.Adam(actor.parameters(), 1e-4), torch.optim.Adam(critic.parameters(), 1e-3))
    return actor, critic, copy.deepcopy(actor), optimizers


def step(actor, critic, slow_actor, optimizers, frames=12):
    rng = np.random.default_rng(9)
    replay = Replay(10, 3, 1, "cuda")
    obs = rng.normal(size=3).astype(np.float32)
    for _ in range(frames):
        with torch.no_grad():
            action = actor(torch.FloatTensor(obs[None]).to("cuda"))[0].cpu().numpy()
        action = np.clip(action + 0.1 * rng.normal(size=1), -1, 1).astype(np.float32)
        replay.add(obs, action, -float(np.abs(action - obs[0]).sum()))
        obs = rng.normal(size=3).astype(np.float32)
    actor_opt, critic_opt = optimizers
    for _ in range(2):
        state, act, reward = replay.sample(4)
        with torch.no_grad():
            goal = reward + 0.9 * critic(torch.cat([state, slow_actor(state)], 1))
        critic_opt.zero_grad()
        F.mse_loss(critic(torch.cat([state, act], 1)), goal).backward()
        critic_opt.step()
        actor_opt.zero_grad()
        critic(torch.cat([state, actor(state)], 1)).mean().neg().backward()
        actor_opt.step()
        with torch.no_grad():
            for slow, fast in zip(slow_actor.parameters(), actor.parameters()):
                slow.lerp_(fast, 0.05)
