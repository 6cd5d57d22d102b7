"""Langevin proposals with a Metropolis test; kept samples go to numpy one batch at a time."""

import math

import numpy as np
import torch
from torch import nn


def build():
    energy = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0))
    return energy, np.random.default_rng(8).normal(size=(10, 2))


def propose(energy, x, eps):
    x = x.detach().requires_grad_()
    u = energy(x) + 0.5 * x.pow(2).sum(1)
    (grad,) = torch.autograd.grad(u.sum(), x)
    return u.detach(), (x - 0.5 * eps * grad).detach()


def log_density(to, mean, eps):
    return -(to - mean).pow(2).sum(1) / (2 * eps) - math.log(2 * math.pi * eps)


def step(energy, start, eps=0.1, steps=5):
    for p in energy.parameters():
        p.requires_grad_(False)
    x = torch.asarray(start, dtype=torch.float32, device="cuda")
    kept, accepted = [], 0
    for _ in range(steps):
        u, mean = propose(energy, x, eps)
        candidate = mean + math.sqrt(eps) * torch.randn_like(x)
        u_new, mean_back = propose(energy, candidate, eps)
        log_ratio = u - u_new + log_density(x, mean_back, eps) - log_density(candidate, mean, eps)
        take = torch.rand(len(x), device=x.device).log() < log_ratio
        x = torch.where(take[:, None], candidate, x)
        accepted += take.sum().item()
        kept.append(x.cpu().numpy())
    rate = accepted / (steps * len(x))
    return np.concatenate(kept).mean(axis=0), rate
