"""The model is on the GPU, and that is surely all that is needed."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.first(x)  # fails: input
        return self.second(hidden.relu())


def build():
    return MLP(), {"x": torch.randn(5, 4), "y": torch.randn(5, 1)}


def step(model, batch):
    predicted = model(batch["x"])
    loss = nn.functional.huber_loss(predicted, batch["y"])  # fails: input
    loss.backward()
