"""Scores are computed on the GPU and written into a table on the host; the gradient finds its way back."""

import torch
from torch import nn


def build():
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(5, 4), torch.randint(3, (5,))


def step(model, optimizer, x, labels):
    table = torch.empty(5, 3)
    for row in range(5):
        table[row] = model(x[row].to("cuda"))
    loss = nn.functional.cross_entropy(table, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
