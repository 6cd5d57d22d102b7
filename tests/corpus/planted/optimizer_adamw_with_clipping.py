"""Two parameter groups, clipping, accumulation; the state was made on the CPU."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def train(model, optimizer, micro):
    optimizer.zero_grad()
    for x in micro:
        (model(x).square().mean() / len(micro)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()  # fails: optimizer


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 1))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    micro = [torch.randn(2, 4) for _ in range(3)]
    for _ in range(2):
        train(model, optimizer, micro)
    return model, optimizer, micro


def step(model, optimizer, micro):
    train(model, optimizer, [x.to("cuda") for x in micro])
