"""The table is a buffer, so .to moves it."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Encoder(nn.Module):
    def __init__(self, width=8, longest=16):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        table = torch.sin(torch.arange(longest)[:, None] * torch.linspace(1.0, 0.01, width))
        self.register_buffer("table", table, persistent=False)

    def forward(self, tokens):
        return self.embed(tokens) + self.table[: tokens.size(1)]


def build():
    return Encoder(), torch.randint(0, 20, (2, 6))


def step(model, tokens):
    model(tokens.to("cuda")).pow(2).mean().backward()
