"""The running loss is kept by torch.tensor(...) of a tensor, which warns and stays on the same device."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(6, 5), torch.randn(6, 1)


def step(model, optimizer, features, values):
    features, values = features.to("cuda"), values.to("cuda")
    errors = (model(features) - values).square().mean(1)
    weights = 1 / (1 + torch.tensor(errors))  # no gradient flows through these
    loss = (weights * errors).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.new_tensor(values) + loss.detach()
