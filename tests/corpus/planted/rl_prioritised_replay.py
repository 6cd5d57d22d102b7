"""Prioritised replay: the buffer lives in host memory and remembers so."""

import numpy as np
import torch
from torch import nn


class PrioritisedReplay:
    def __init__(self, size=32):
        self.device = torch.device("cpu")
        self.rng = np.random.default_rng(5)
        self.obs = self.rng.normal(size=(size, 4)).astype(np.float32)
        self.value = self.rng.normal(size=size).astype(np.float32)
        self.priority = np.ones(size)

    def sample(self, n, beta=0.4):
        p = self.priority / self.priority.sum()
        rows = self.rng.choice(len(p), size=n, p=p)
        weight = (len(p) * p[rows]) ** -beta
        weight = torch.as_tensor(weight / weight.max(), dtype=torch.float32, device=self.device)
        return rows, self.obs[rows], self.value[rows], weight

    def update(self, rows, error):
        self.priority[rows] = np.abs(error) + 1e-3


def build():
    critic = nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 1), nn.Flatten(0))
    return critic, torch.optim.Adam(critic.parameters()), PrioritisedReplay()


def step(critic, optimizer, replay):
    for _ in range(3):
        rows, obs, value, weight = replay.sample(8)
        obs = torch.from_numpy(obs).to("cuda")
        value = torch.FloatTensor(value).to("cuda")
        error = critic(obs) - value
        loss = (weight * error.square()).mean()  # fails: stale-device
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update(rows, error.detach().numpy())  # fails: numpy
