"""The batch is pinned, but only after it has been sent."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 1))
    return model, torch.optim.Adam(model.parameters()), [torch.randn(3, 2, 8) for _ in range(2)]


def step(model, optimizer, batches):
    for signal in batches:
        signal = signal.to("cuda")
        signal = signal.pin_memory()  # fails: host
        loss = model(signal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
