"""The predictions of all batches are compared with the targets as the loader gave them."""

import torch
from torch import nn


def build():
    batches = [{"x": torch.randn(3, 4), "y": torch.tensor([0, 1, 1])} for _ in range(2)]
    return nn.Linear(4, 2), batches


def step(model, batches):
    predicted, targets = [], []
    for batch in batches:
        predicted.append(model(batch["x"].cuda()).argmax(-1))
        targets.append(batch["y"])
    predicted, targets = torch.cat(predicted), torch.cat(targets)
    return (predicted == targets).float()  # fails: input
