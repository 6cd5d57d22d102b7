"""An optimizer, a schedule and a model that was moved late."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def build():
    model = nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    tokens = torch.randint(0, 12, (4, 3))
    for _ in range(2):
        model(tokens).logsumexp(-1).mean().backward()
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule, tokens


def step(model, optimizer, schedule, tokens):
    optimizer.zero_grad()
    model(tokens.to("cuda")).logsumexp(-1).mean().backward()
    optimizer.step()  # fails: optimizer
    schedule.step()
