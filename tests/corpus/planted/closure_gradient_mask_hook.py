"""Frozen rows of the embedding get no gradient, by a hook on the weight."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def freeze_rows(weight, rows):
    keep = torch.ones(weight.size(0), 1)
    keep[rows] = 0
    weight.register_hook(lambda grad: grad * keep)  # fails: closure


def build():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    freeze_rows(model[0].weight, [0, 1, 2])
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randint(0, 10, (2, 5))


def step(model, optimizer, tokens):
    optimizer.zero_grad()
    loss = model(tokens.to("cuda")).square().mean()
    loss.backward()
    optimizer.step()
