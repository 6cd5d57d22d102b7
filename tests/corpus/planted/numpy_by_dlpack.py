"""Features for a tree of another library are handed to numpy without a copy, by dlpack, straight from the model."""

import numpy as np
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten()), torch.randn(3, 2, 8)


def step(model, signal):
    features = model(signal.to("cuda")).detach()
    table = np.from_dlpack(features)  # fails: numpy
    return np.sort(table, axis=1)
