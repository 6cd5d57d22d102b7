"""The learning rate is a tensor on the host, which a schedule fills; so is what is filled with a number of the card."""

import torch
from torch import nn


def build():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9), torch.randn(2, 2)


def step(model, optimizer, schedule, x):
    loss = model(x.to("cuda")).square().mean()
    loss.backward()
    optimizer.step()
    schedule.step()
    torch.zeros(3).fill_(loss.detach())
