"""A running mean of the loss, and a check that the gradients are finite."""

import torch
from torch import nn

OPTIONS = {"data": "real"}


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += float(value)  # fails: synchronizes
        self.count += 1


def build():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), Meter(), torch.randn(5, 4)


def step(model, optimizer, meter, x):
    optimizer.zero_grad()
    loss = model(x.cuda()).abs().mean()
    loss.backward()
    assert torch.isfinite(model.weight.grad).all()  # fails: synchronizes
    optimizer.step()
    meter.update(loss.detach())
