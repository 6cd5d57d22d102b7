"""A checkpoint is resumed before the model goes to the GPU."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def make():
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def build():
    trained, its_optimizer = make()
    for _ in range(2):
        its_optimizer.zero_grad()
        trained(torch.randn(3, 5)).square().sum().backward()
        its_optimizer.step()
    model, optimizer = make()
    model.load_state_dict(trained.state_dict())
    optimizer.load_state_dict(its_optimizer.state_dict())
    return model, optimizer, torch.randn(3, 5)


def step(model, optimizer, x):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    loss = model(x.cuda()).square().mean()
    loss.backward()
    optimizer.step()  # fails: optimizer
