"""Tokens to hide are drawn in place, with the generator that also splits the data."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 16)
        self.split = torch.Generator().manual_seed(0)

    def forward(self, ids):
        hidden = torch.empty(ids.shape, device=ids.device).uniform_(generator=self.split) < 0.3  # fails: generator
        return self.head(self.mix(self.embed(ids.masked_fill(hidden, 15)))), hidden


def build():
    model = Denoiser()
    return model, torch.optim.Adam(model.parameters()), torch.randint(0, 15, (4, 6))


def step(model, optimizer, ids):
    ids = ids.to("cuda")
    scores, hidden = model(ids)
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), ids, reduction="none")
    loss = (losses * hidden).sum() / hidden.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
