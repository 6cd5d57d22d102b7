"""Spectral norm, weight norm and a low-rank update are parametrizations: all their parts are parameters or buffers."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

OPTIONS = {"moved_by": "to"}


class LowRank(nn.Module):
    def __init__(self, rows, columns, rank=2, alpha=4):
        super().__init__()
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.down = nn.Parameter(torch.randn(rank, columns) * 0.02)
        self.scale = alpha / rank

    def forward(self, weight):
        return weight + self.scale * self.up @ self.down


def build():
    net = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), nn.Linear(12, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
    parametrizations.spectral_norm(net[0])
    parametrizations.weight_norm(net[2])
    net[4].requires_grad_(False)
    parametrize.register_parametrization(net[4], "weight", LowRank(1, 12))
    trainable = [p for p in net.parameters() if p.requires_grad]
    return net, torch.optim.Adam(trainable, lr=2e-4, betas=(0.0, 0.9)), torch.randn(4, 6), torch.randn(4, 6)


def step(net, optimizer, real, fake):
    real, fake = real.to("cuda"), fake.to("cuda")
    with parametrize.cached():
        loss = (1 - net(real)).relu().mean() + (1 + net(fake)).relu().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
