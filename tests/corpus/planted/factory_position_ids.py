"""Positions are simply 0, 1, 2, ..."""

import torch
from torch import nn


class Embeddings(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.words = nn.Embedding(30, width)
        self.places = nn.Embedding(12, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1))
        places = self.places(positions)  # fails: factory
        return self.norm(self.words(tokens) + places)


def build():
    return Embeddings(), {"input_ids": torch.randint(0, 30, (2, 7))}


def step(model, batch):
    tokens = batch["input_ids"].to(next(model.parameters()).device)
    model(tokens).square().mean().backward()
