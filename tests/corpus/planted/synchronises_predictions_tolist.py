"""Predictions are written to a file as plain numbers."""

import torch
from torch import nn

OPTIONS = {"data": "real"}


def build():
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4)).eval()
    return model, {"image": torch.randn(3, 1, 3, 3), "names": ["a", "b", "c"]}


def step(model, batch):
    with torch.no_grad():
        best = model(batch["image"].to("cuda")).argmax(-1)
    numbers = best.tolist()  # fails: synchronizes
    return dict(zip(batch["names"], numbers, strict=True))
