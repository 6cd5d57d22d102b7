"""A forward hook steers the activations by a vector found earlier."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def steer(layer, direction):
    def hook(module, args, output):
        return output + direction  # fails: closure

    layer.register_forward_hook(hook)


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    steer(model[0], torch.randn(8))
    return model, torch.randn(3, 4)


def step(model, x):
    loss = model(x.to("cuda")).logsumexp(-1).mean()
    loss.backward()
