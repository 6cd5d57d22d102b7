"""Weighted loss, logged at every step."""

import torch
from torch import nn

OPTIONS = {"data": "real"}
WEIGHT = torch.tensor([1.0, 2.0])


def build():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.randn(4, 3), "y": torch.randn(4, 2)}


def step(model, optimizer, batch):
    error = (model(batch["x"].to("cuda")) - batch["y"].to("cuda")).square()
    loss = (error * WEIGHT).mean()  # fails: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}  # fails: synchronizes
