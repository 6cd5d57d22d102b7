"""A denoiser whose settings name two devices: one to train on, one for noise so that all machines draw the same."""

from dataclasses import dataclass, field

import torch
from torch import nn


def best_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Config:
    sigma: float = 0.3
    lr: float = 2e-3
    device: torch.device = field(default_factory=best_device)
    noise_device: torch.device = torch.device("cpu")


cfg = Config()


def corrupt(clean):
    noise = torch.randn(clean.shape, device=cfg.noise_device)
    return clean + cfg.sigma * noise  # fails: stale-device


def build():
    net = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.SiLU(), nn.Conv1d(4, 1, 3, padding=1))
    net.to(cfg.device)
    return net, torch.optim.NAdam(net.parameters(), lr=cfg.lr), torch.randn(3, 1, 10)


def step(net, optimizer, signal):
    signal = signal.to(cfg.device)
    restored = net(corrupt(signal))
    loss = nn.functional.mse_loss(restored, signal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())
