"""Two tables on one line: the first stays on the CPU with the statistics, the second meets the output."""

import torch
from torch import nn


def build():
    return nn.Linear(4, 2), torch.randn(3, 4)


def step(model, x):
    out = model(x.cuda())
    edges, scale = torch.tensor([0.0, 1.0]), torch.tensor([0.3, 0.4])
    wide = edges.diff()
    loss = (out * scale).sum()  # fails: factory
    loss.backward()
    return wide
