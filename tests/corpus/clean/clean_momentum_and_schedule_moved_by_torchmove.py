"""Momentum buffers and a warm schedule, moved in the middle of training."""

import torch
from torch import nn


def build():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    for _ in range(3):
        model(torch.randn(2, 3)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule, torch.randn(2, 3)


def step(model, optimizer, schedule, x):
    optimizer.zero_grad()
    model(x.to("cuda")).square().mean().backward()
    optimizer.step()
    schedule.step()
