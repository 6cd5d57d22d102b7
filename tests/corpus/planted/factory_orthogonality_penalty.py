"""Keep the columns of the weight orthogonal to each other."""

import torch
from torch import nn


def orthogonality(weight):
    gram = weight.T @ weight
    return (gram - torch.eye(gram.size(0))).square().sum()  # fails: factory


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    return model, torch.optim.AdamW(model.parameters()), torch.randn(5, 6)


def step(model, optimizer, x):
    x = x.to(next(model.parameters()).device)
    loss = model(x).square().mean()
    loss = loss + 0.01 * orthogonality(model[2].weight)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
