"""A full GAN step, with real samples sent over and noise drawn afresh."""

import torch
from torch import nn


def build():
    generator = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
    critic = nn.Linear(3, 1)
    g_opt = torch.optim.Adam(generator.parameters())
    c_opt = torch.optim.Adam(critic.parameters())
    return generator, critic, g_opt, c_opt, torch.randn(4, 3)


def step(generator, critic, g_opt, c_opt, real):
    real.cuda()
    noise = torch.randn(real.size(0), 2)
    fake = generator(noise)  # fails: factory
    good = critic(real)  # fails: thrown-away
    c_opt.zero_grad()
    (critic(fake.detach()).mean() - good.mean()).backward()
    c_opt.step()
    g_opt.zero_grad()
    (-critic(fake).mean()).backward()
    g_opt.step()
