"""One layer-scale vector per depth, in a list."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class DeepResidual(nn.Module):
    def __init__(self, width=8, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.scales = [torch.full((width,), 0.1 * (i + 1)) for i in range(depth)]

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales, strict=True):
            branch = torch.relu(layer(x))
            x = x + branch * scale  # fails: container
        return x


def build():
    return DeepResidual(), torch.randn(4, 8)


def step(model, x):
    model(x.to("cuda")).mean().backward()
