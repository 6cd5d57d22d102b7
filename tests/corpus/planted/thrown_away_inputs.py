"""x.to("cuda") moves x, as model.to("cuda") moves the model."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 4), torch.tensor([0, 1, 1])


def step(model, optimizer, x, y):
    model.to("cuda")
    x.to("cuda")
    y = y.to("cuda")
    logits = model(x)  # fails: thrown-away
    optimizer.zero_grad()
    F.cross_entropy(logits, y).backward()
    optimizer.step()
