"""Both halves of a GAN step, every tensor made where it is used."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    generator = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
    critic = nn.Linear(3, 1)
    g_opt = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
    c_opt = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.999))
    return generator, critic, g_opt, c_opt, torch.randn(4, 3)


def step(generator, critic, g_opt, c_opt, real):
    real = real.cuda()
    fake = generator(torch.randn(real.size(0), 2, device=real.device))
    good, bad = critic(real), critic(fake.detach())
    loss = F.binary_cross_entropy_with_logits(good, torch.ones_like(good))
    loss = loss + F.binary_cross_entropy_with_logits(bad, torch.zeros_like(bad))
    c_opt.zero_grad()
    loss.backward()
    c_opt.step()
    g_opt.zero_grad()
    F.softplus(-critic(fake)).mean().backward()
    g_opt.step()
