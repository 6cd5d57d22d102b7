"""Accumulate over micro-batches, clip, step, schedule."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))
    return model, optimizer, schedule, [torch.randn(2, 4) for _ in range(3)]


def step(model, optimizer, schedule, micro):
    optimizer.zero_grad()
    total = 0.0
    for x in micro:
        loss = model(x.to("cuda")).square().mean() / len(micro)
        loss.backward()
        total = total + loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    return total
