"""Two views of every image; each must find the other one among all, and never itself."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.projector = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, dim))

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=1)


def info_nce(z, temperature=0.2):
    n = z.size(0) // 2
    sim = z @ z.T / temperature
    itself = torch.eye(2 * n, dtype=torch.bool)
    sim = sim.masked_fill(itself, -1e4)  # fails: factory
    other = torch.arange(2 * n).roll(n)
    return F.cross_entropy(sim, other)  # fails: factory


def augment(x):
    x = torch.flip(x, dims=[-1])
    return (x + 0.05 * torch.randn_like(x)).clamp(0, 1)


def build():
    encoder = Encoder()
    encoder(torch.rand(2, 3, 7, 7))
    return encoder, torch.optim.SGD(encoder.parameters(), lr=0.03), torch.rand(4, 3, 7, 7)


def step(encoder, optimizer, images):
    images = images.to("cuda", non_blocking=True)
    z = encoder(torch.cat([augment(images), augment(images)]))
    loss = info_nce(z)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
