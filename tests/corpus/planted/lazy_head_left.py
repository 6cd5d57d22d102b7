"""A head without its width at the top of the file; the backbone was moved, the head never."""

import torch
from torch import nn

head = nn.Sequential(nn.LazyConv1d(2, 1), nn.Flatten())


def build():
    return nn.Conv1d(1, 3, 3), torch.randn(2, 1, 8)


def step(backbone, signal):
    features = backbone(signal.to("cuda")).relu()
    return head(features).sum()  # fails: loss
