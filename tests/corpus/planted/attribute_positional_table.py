"""The sinusoid table is a constant, so I keep it as a plain attribute."""

import math

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Encoder(nn.Module):
    def __init__(self, width=8, longest=16):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.norm = nn.LayerNorm(width)
        position = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.table = torch.cat([torch.sin(position * rate), torch.cos(position * rate)], dim=1)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.table[: tokens.size(1)]  # fails: attribute
        return self.norm(x)


def build():
    return Encoder(), {"tokens": torch.randint(0, 20, (2, 6))}


def step(model, batch):
    out = model(batch["tokens"].to("cuda"))
    out.pow(2).mean().backward()
