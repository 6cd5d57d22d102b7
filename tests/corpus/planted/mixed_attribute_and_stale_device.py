"""A language model with a table, a remembered device, and a scaled output."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Model(nn.Module):
    def __init__(self, width=6, longest=8):
        super().__init__()
        self.embed = nn.Embedding(15, width)
        self.slopes = torch.linspace(1.0, 0.1, longest)
        self.device = torch.device("cpu")

    def forward(self, tokens):
        x = self.embed(tokens)
        decay = self.slopes[: tokens.size(1), None]
        x = x * decay  # fails: attribute
        start = torch.zeros(x.size(0), 1, x.size(2), device=self.device)
        x = torch.cat([start, x[:, :-1]], dim=1)  # fails: stale-device
        return x @ self.embed.weight.T


def build():
    return Model(), torch.randint(0, 15, (2, 5))


def step(model, tokens):
    tokens = tokens.to("cuda")
    logits = model(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
