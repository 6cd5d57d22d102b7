"""The steering vector sits in a hook's closure, and the mover follows closures."""

import torch
from torch import nn


def steer(layer, direction):
    def hook(module, args, output):
        return output + direction

    layer.register_forward_hook(hook)


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    steer(model[0], torch.randn(8))
    return model, torch.randn(3, 4)


def step(model, x):
    model(x.cuda()).logsumexp(-1).mean().backward()
