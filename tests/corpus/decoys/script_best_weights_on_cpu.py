"""The best weights so far are kept as copies on the CPU and loaded back into the model at the end."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Settings:
    lr: float = 0.3
    rounds: int = 3
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    checkpoint_device: torch.device = torch.device("cpu")


settings = Settings()


def snapshot(model):
    return {k: v.detach().to(settings.checkpoint_device, copy=True) for k, v in model.state_dict().items()}


def distance(model, weights):
    return sum((p.detach().to(weights[k].device) - weights[k]).pow(2).sum() for k, p in model.named_parameters())


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)).to(settings.device)
    return model, torch.optim.SGD(model.parameters(), lr=settings.lr), torch.randn(6, 4), torch.randn(6, 1)


def step(model, optimizer, x, y):
    x, y = x.to(settings.device), y.to(settings.device)
    best, best_weights = float("inf"), snapshot(model)
    for _ in range(settings.rounds):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best, best_weights = loss.item(), snapshot(model)
    moved_by = distance(model, best_weights)
    model.load_state_dict(best_weights)
    return best, moved_by
