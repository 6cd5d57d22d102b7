"""The penalty of a Wasserstein critic, with a mixing weight and ones that come from bare factory calls."""

import os

import torch
from torch import nn

device = torch.device(os.environ.get("WGAN_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
LAMBDA = 10
Z_DIM = 4


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)  # fails: factory
    score = critic(mixed)
    ones = torch.ones(score.size())
    (grad,) = torch.autograd.grad(score, mixed, grad_outputs=ones, create_graph=True)  # fails: factory
    return LAMBDA * (grad.norm(2, dim=1) - 1).pow(2).mean()


def build():
    generator = nn.Sequential(nn.Linear(Z_DIM, 10), nn.ReLU(), nn.Linear(10, 6)).to(device)
    critic = nn.Sequential(nn.Linear(6, 10), nn.Softplus(), nn.Linear(10, 1)).to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    return generator, critic, optimizer, torch.randn(5, 6)


def step(generator, critic, optimizer, real):
    real = real.to(device)
    with torch.no_grad():
        fake = generator(torch.randn(len(real), Z_DIM, device=device))
    loss = critic(fake).mean() - critic(real).mean() + gradient_penalty(critic, real, fake)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
