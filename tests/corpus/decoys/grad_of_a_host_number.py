"""A learned scale on the host, without a dimension: its gradient comes to it there."""

import torch
from torch import nn

scale = torch.tensor(2.0, requires_grad=True)


def build():
    return nn.Linear(2, 2), torch.randn(3, 2)


def step(model, x):
    for _ in range(2):
        (model(x.to("cuda")) * scale).sum().backward()
    with torch.no_grad():
        scale.sub_(0.1 * scale.grad)
        scale.grad.zero_()
