"""A gradient penalty that asks the real samples where everything has to be."""

import torch
from torch import nn


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, device=real.device).expand_as(real)
    mixed = torch.lerp(fake, real, alpha).requires_grad_(True)
    score = critic(mixed)
    (slope,) = torch.autograd.grad(
        outputs=score,
        inputs=mixed,
        grad_outputs=torch.ones(score.size(), device=real.device),
        create_graph=True,
        retain_graph=True,
    )
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


def build():
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    return generator, critic, opt_g, opt_c, list(torch.randn(12, 6).split(4))


def step(generator, critic, opt_g, opt_c, batches):
    device = next(critic.parameters()).device
    for real in batches:
        real = real.to(device)
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 3).to(device))
        loss = critic(fake).mean() - critic(real).mean() + 10.0 * gradient_penalty(critic, real, fake)
        opt_c.zero_grad(set_to_none=True)
        loss.backward()
        opt_c.step()
    for p in critic.parameters():
        p.requires_grad_(False)
    opt_g.zero_grad()
    critic(generator(torch.randn(4, 3, device=device))).mean().neg().backward()
    opt_g.step()
    for p in critic.parameters():
        p.requires_grad_(True)
