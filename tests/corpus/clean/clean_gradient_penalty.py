"""A gradient penalty done right."""

import torch
from torch import nn


def penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, device=real.device)
    between = (fake + alpha * (real - fake)).requires_grad_(True)
    score = critic(between)
    (grad,) = torch.autograd.grad(score, between, grad_outputs=torch.ones_like(score), create_graph=True)
    return (grad.norm(2, dim=1) - 1).square().mean()


def build():
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return critic, torch.optim.RMSprop(critic.parameters(), lr=1e-3), torch.randn(5, 4), torch.randn(5, 4)


def step(critic, optimizer, real, fake):
    real, fake = real.cuda(), fake.cuda()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
