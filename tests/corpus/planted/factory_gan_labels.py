"""Ones for real, zeros for fake."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.999))
    return generator, critic, optimizer, torch.randn(5, 4)


def step(generator, critic, optimizer, real):
    real = real.to("cuda")
    n = real.size(0)
    z = torch.randn(n, 3, device="cuda")
    fake = generator(z).detach()
    loss_real = F.binary_cross_entropy_with_logits(critic(real), torch.ones(n, 1))  # fails: factory
    loss_fake = F.binary_cross_entropy_with_logits(critic(fake), torch.zeros(n, 1))  # fails: factory
    optimizer.zero_grad()
    (loss_real + loss_fake).backward()
    optimizer.step()
