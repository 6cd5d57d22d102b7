"""A gradient penalty between real and fake samples."""

import torch
from torch import nn


def penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    between = fake + alpha * (real - fake)  # fails: factory
    between.requires_grad_(True)
    score = critic(between)
    ones = torch.ones(score.shape)
    (grad,) = torch.autograd.grad(score, between, grad_outputs=ones, create_graph=True)  # fails: factory
    return (grad.norm(2, dim=1) - 1).square().mean()


def build():
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    return critic, optimizer, torch.randn(5, 4), torch.randn(5, 4)


def step(critic, optimizer, real, fake):
    real, fake = real.cuda(), fake.cuda()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
