"""The noise schedule is baked into a function that the model calls."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def make_noiser(steps):
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), dim=0)

    def noiser(x, noise, t):
        level = kept[t].view(-1, 1)  # fails: closure
        return level.sqrt() * x + (1 - level).sqrt() * noise

    return noiser


class Denoiser(nn.Module):
    def __init__(self, steps=10):
        super().__init__()
        self.noiser = make_noiser(steps)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))

    def forward(self, x, noise, t):
        return self.net(self.noiser(x, noise, t))


def build():
    model = Denoiser()
    return model, torch.optim.AdamW(model.parameters()), torch.randn(3, 4)


def step(model, optimizer, x):
    x = x.to("cuda")
    noise = torch.randn_like(x)
    t = torch.randint(0, 10, (x.size(0),), device=x.device)
    optimizer.zero_grad()
    (model(x, noise, t) - noise).square().mean().backward()
    optimizer.step()
