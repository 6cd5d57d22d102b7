"""new_zeros, new_tensor, ones_like: all of them follow x."""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        start = x.new_zeros(x.size(0), 1, 4)
        shifted = torch.cat([start, x[:, :-1]], dim=1)
        gain = x.new_tensor([1.0, 0.5, 0.25, 0.125])
        keep = (torch.rand_like(x) > 0.1).to(x.dtype)
        return self.linear(shifted * gain * keep) + torch.full_like(x, 0.1)


def build():
    return Mixer(), torch.randn(2, 3, 4)


def step(model, x):
    model(x.to("cuda")).sum().backward()
