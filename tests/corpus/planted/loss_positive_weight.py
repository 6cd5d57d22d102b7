"""Rare labels count for more in the multi-label loss."""

import torch
from torch import nn

criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 4.0, 9.0]))


class MultiLabel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        _, (h, _) = self.body(x)
        return self.head(h[-1])


def build():
    return MultiLabel(), (torch.randn(2, 4, 3), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))


def step(model, batch):
    x, y = [t.to("cuda") for t in batch]
    loss = criterion(model(x), y)  # fails: loss
    loss.backward()
