"""A replay memory on the host: indices from the card are taken to where the memory is, when it is written to."""

import torch
from torch import nn


def build():
    return nn.Linear(3, 2), torch.randn(8, 3)


def step(model, observations):
    memory = torch.zeros(16, 3)
    places = torch.randperm(16, device="cuda")[:8]
    memory[places] = observations
    memory[:8] = model(observations.to("cuda")).detach()[:, :1].expand(8, 3)
    model(memory[:4].to("cuda")).sum().backward()
