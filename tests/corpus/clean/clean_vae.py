"""A variational autoencoder done right."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self, width=8, latent=3):
        super().__init__()
        self.encode = nn.Linear(width, 2 * latent)
        self.decode = nn.Linear(latent, width)

    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        divergence = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(self.decode(z), x) + divergence


def build():
    model = VAE()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.rand(4, 8)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).backward()
    optimizer.step()
