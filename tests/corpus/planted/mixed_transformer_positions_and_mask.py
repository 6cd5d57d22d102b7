"""A small encoder: positions from arange, the padding mask from the batch."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.places = nn.Embedding(10, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 20)

    def forward(self, tokens, padding):
        places = self.places(torch.arange(tokens.size(1)))  # fails: factory
        x = self.words(tokens) + places
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.masked_fill(padding[:, None], -1e4)  # fails: input
        return self.head(scores.softmax(-1) @ self.v(x))


def build():
    model = Encoder()
    batch = {"tokens": torch.randint(0, 20, (2, 6)), "padding": torch.zeros(2, 6, dtype=torch.bool)}
    return model, torch.optim.AdamW(model.parameters()), batch


def step(model, optimizer, batch):
    tokens = batch["tokens"].to("cuda")
    logits = model(tokens, batch["padding"])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
