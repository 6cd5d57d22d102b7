"""The variance is sent whenever it is set anew. The constructor sets it, too."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 2)
        self.variance = torch.full((2,), 0.36)

    def decay(self, variance):
        self.variance = torch.full((2,), variance).to(device)

    def forward(self, state):
        return torch.distributions.Normal(self.mean(state), self.variance.sqrt())


def build():
    return Policy(), torch.randn(5, 3)


def step(policy, states):
    actions = policy(states.to(device)).rsample()  # fails: attribute
    actions.sum().backward()
    policy.decay(0.25)
