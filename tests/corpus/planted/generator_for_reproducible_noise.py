"""A generator is seeded so that every run draws the same noise."""

import torch
from torch import nn


def build():
    generator = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 12), nn.SiLU(), nn.Linear(12, 4))
    return model, torch.optim.AdamW(model.parameters()), generator, torch.randn(8, 4)


def step(model, optimizer, generator, x):
    x = x.to("cuda")
    noise = torch.randn(x.shape, device=x.device, generator=generator)  # fails: generator
    level = torch.rand(len(x), 1, device=x.device)
    loss = (model((1 - level) * x + level * noise) - (noise - x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
