"""A 0-dim tensor on the CPU is as good as a number."""

import torch
from torch import nn

TEMPERATURE = torch.tensor(0.7)


def build():
    return nn.Linear(4, 3), torch.randn(2, 4)


def step(model, x):
    scale = torch.tensor(2.0)
    logits = model(x.to("cuda")) / TEMPERATURE
    kept = torch.where(logits > 0, logits, torch.tensor(0.0))
    loss = (kept * scale).mean() + torch.tensor(1e-3)
    loss.backward()
