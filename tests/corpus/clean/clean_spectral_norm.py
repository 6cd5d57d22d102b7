"""Spectral norm keeps its vectors as buffers."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

OPTIONS = {"moved_by": "to"}


def build():
    critic = nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(6, 1)))
    return critic, torch.optim.Adam(critic.parameters()), torch.randn(5, 4)


def step(critic, optimizer, x):
    optimizer.zero_grad()
    critic(x.to("cuda")).mean().backward()
    optimizer.step()
