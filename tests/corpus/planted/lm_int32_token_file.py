"""Tokens are kept as int32 in the file, which is half the size and reads just as well."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class TokenLoader:
    def __init__(self, tokens, batch, length):
        self.tokens, self.batch, self.length, self.at = tokens, batch, length, 0

    def next_batch(self):
        n = self.batch * self.length
        piece = torch.from_numpy(self.tokens[self.at : self.at + n + 1])
        self.at = 0 if self.at + 2 * n + 1 > len(self.tokens) else self.at + n
        return piece[:-1].view(self.batch, -1), piece[1:].view(self.batch, -1)


def build():
    model = nn.Sequential(nn.Embedding(50, 6), nn.LayerNorm(6), nn.Linear(6, 50))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = np.random.default_rng(1).integers(0, 50, size=500, dtype=np.int32)
    return model, optimizer, TokenLoader(tokens, batch=4, length=8)


def step(model, optimizer, loader):
    device = torch.device("cuda")
    for _ in range(2):
        x, y = loader.next_batch()
        x, y = x.to(device), y.to(device)
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))  # fails: error
        (loss / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
