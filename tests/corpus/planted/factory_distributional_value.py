"""The value is the mean of a distribution over fixed atoms."""

import torch
from torch import nn


class ValueHead(nn.Module):
    def __init__(self, atoms=11):
        super().__init__()
        self.atoms = atoms
        self.logits = nn.Linear(6, atoms)

    def forward(self, state):
        support = torch.linspace(-1, 1, self.atoms)
        probability = self.logits(state).softmax(-1)
        return probability @ support  # fails: factory


def build():
    return ValueHead(), torch.randn(4, 6), torch.randn(4)


def step(model, state, returns):
    value = model(state.to("cuda"))
    (value - returns.to("cuda")).square().mean().backward()
