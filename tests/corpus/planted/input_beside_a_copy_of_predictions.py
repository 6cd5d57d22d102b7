"""torch.tensor(...) is meant to bring predictions to the host; they stay where they are, and the targets do not."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(6, 5), torch.randn(6, 1)


def step(model, optimizer, features, values):
    predicted = model(features.to("cuda"))
    loss = (predicted - values.to("cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    on_the_host = torch.tensor(predicted)
    return (on_the_host - values).abs().max()  # fails: input
