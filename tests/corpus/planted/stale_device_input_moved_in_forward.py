"""forward moves whatever it is given, so callers need not care."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Helpful(nn.Module):
    def __init__(self, device="cpu"):
        super().__init__()
        self.device = torch.device(device)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(self.device)

    def forward(self, x):
        x = x.to(self.device)
        return self.net(x)  # fails: stale-device


def build():
    return Helpful(), nn.CrossEntropyLoss(), torch.randn(4, 4), torch.tensor([0, 1, 2, 0])


def step(model, criterion, x, y):
    logits = model(x.to("cuda"))
    criterion(logits, y.to("cuda")).backward()
