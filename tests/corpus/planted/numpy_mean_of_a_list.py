"""The losses of an epoch go to numpy as they are."""

import numpy as np
import torch
from torch import nn


def build():
    return nn.Linear(4, 2), torch.randn(3, 4)


def step(model, x):
    losses = []
    for _ in range(2):
        loss = model(x.cuda()).mean()
        loss.backward()
        losses.append(loss.detach())
    return np.mean(losses)  # fails: numpy
