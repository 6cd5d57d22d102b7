"""Distributional Q-learning whose atoms are a buffer of the network."""

import numpy as np
import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class C51(nn.Module):
    def __init__(self, n_actions=3, n_atoms=11, v_min=-5.0, v_max=5.0):
        super().__init__()
        self.n, self.n_atoms, self.v_min, self.v_max = n_actions, n_atoms, v_min, v_max
        self.register_buffer("atoms", torch.linspace(v_min, v_max, steps=n_atoms))
        self.net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, n_actions * n_atoms))

    def get_action(self, x, action=None):
        pmfs = self.net(x).view(len(x), self.n, self.n_atoms).softmax(dim=2)
        if action is None:
            action = (pmfs * self.atoms).sum(2).argmax(1)
        return action, pmfs[torch.arange(len(x)), action]


def build():
    rng = np.random.default_rng(6)
    batch = {
        "obs": rng.normal(size=(6, 4)),
        "next_obs": rng.normal(size=(6, 4)),
        "actions": rng.integers(0, 3, size=6),
        "rewards": rng.normal(size=(6, 1)),
        "dones": np.zeros((6, 1)),
    }
    q, slow = C51(), C51()
    return q, slow, torch.optim.Adam(q.parameters(), lr=2.5e-4, eps=0.01 / 32), batch


def step(q, slow, optimizer, batch):
    device = q.atoms.device
    obs, next_obs, rewards, dones = (torch.Tensor(batch[k]).to(device) for k in ("obs", "next_obs", "rewards", "dones"))
    actions = torch.tensor(batch["actions"], device=device)
    with torch.no_grad():
        _, next_pmfs = slow.get_action(next_obs)
        next_atoms = rewards + 0.99 * slow.atoms * (1 - dones)
        delta_z = slow.atoms[1] - slow.atoms[0]
        b = (next_atoms.clamp(slow.v_min, slow.v_max) - slow.v_min) / delta_z
        low, up = b.floor().clamp(0, slow.n_atoms - 1), b.ceil().clamp(0, slow.n_atoms - 1)
        share_low, share_up = (up + (low == up).float() - b) * next_pmfs, (b - low) * next_pmfs
        target = torch.zeros_like(next_pmfs)
        for i in range(target.size(0)):
            target[i].index_add_(0, low[i].long(), share_low[i])
            target[i].index_add_(0, up[i].long(), share_up[i])
    _, old_pmfs = q.get_action(obs, actions)
    loss = (-(target * old_pmfs.clamp(min=1e-5, max=1 - 1e-5).log()).sum(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
