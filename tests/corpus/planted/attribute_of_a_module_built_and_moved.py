"""The probe is built in the step and moved, its scale is a plain tensor."""

import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.line = nn.Linear(width, 1)
        self.scale = torch.full((1,), 0.5)

    def forward(self, x):
        return self.line(x) * self.scale.expand(len(x), 1)  # fails: attribute


def build():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh()), torch.randn(6, 3)


def step(body, x):
    features = body(x.to("cuda")).detach()
    probe = Probe(features.shape[1]).to("cuda")
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for _ in range(2):
        loss = probe(features).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
