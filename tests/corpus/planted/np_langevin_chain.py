"""Langevin sampling from a learned energy; the chain is kept in numpy for the histogram."""

import numpy as np
import torch
from torch import nn


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1) + 0.5 * x.square().sum(-1)


def build():
    return Energy(), 12


def step(energy, n_chains, n_steps=6, eps=0.05):
    x = torch.rand(n_chains, 2, device="cuda") * 2 - 1
    chain = np.empty((n_steps, n_chains, 2), dtype=np.float32)
    for i in range(n_steps):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(energy(x).sum(), x)
        with torch.no_grad():
            x = x - 0.5 * eps * slope + eps**0.5 * torch.randn(n_chains, 2)  # fails: factory
        chain[i] = x.detach().numpy()  # fails: numpy
    counts, _, _ = np.histogram2d(chain[..., 0].ravel(), chain[..., 1].ravel(), bins=4)
    return counts / counts.sum()
