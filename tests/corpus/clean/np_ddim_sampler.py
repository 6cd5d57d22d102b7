"""DDIM sampling: the schedule is worked out in numpy and kept as buffers of the sampler."""

import numpy as np
import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Sampler(nn.Module):
    def __init__(self, eps_model, steps=30):
        super().__init__()
        self.eps_model = eps_model
        betas = np.linspace(1e-4**0.5, 0.02**0.5, steps, dtype=np.float64) ** 2
        alpha_bar = np.cumprod(1.0 - betas)
        self.register_buffer("alpha_bar", torch.from_numpy(alpha_bar).float())
        self.steps = steps

    def times(self, count):
        return np.linspace(0, self.steps - 1, count).round().astype(int)[::-1]

    @torch.no_grad()
    def sample(self, shape, count=6, eta=0.5):
        device = self.alpha_bar.device
        x = torch.randn(shape, device=device)
        times = self.times(count)
        for i, t in enumerate(times):
            earlier = times[i + 1] if i + 1 < len(times) else -1
            a = self.alpha_bar[t]
            a_before = self.alpha_bar[earlier] if earlier >= 0 else torch.ones((), device=device)
            eps = self.eps_model(x, torch.full((shape[0],), int(t), device=device))
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            sigma = eta * ((1 - a_before) / (1 - a) * (1 - a / a_before)).sqrt()
            noise = sigma * torch.randn_like(x) if earlier >= 0 else 0.0
            x = a_before.sqrt() * x0 + (1 - a_before - sigma**2).clamp(min=0).sqrt() * eps + noise
        return x


class Eps(nn.Module):
    def __init__(self, dim=3, steps=30):
        super().__init__()
        self.time, self.net = nn.Embedding(steps, dim), nn.Linear(dim, dim)

    def forward(self, x, t):
        return self.net(x) + self.time(t)


def build():
    return (Sampler(Eps()),)


def step(sampler):
    picture = sampler.sample((4, 3)).cpu().numpy()
    return (255 * (picture.clip(-1, 1) + 1) / 2).astype(np.uint8)
