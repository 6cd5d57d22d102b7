"""Rare words shall count for more: token ids are ranks, so the weight of a word follows from its id."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 40


class NextWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)
        self.gru = nn.GRU(8, 12, batch_first=True)
        self.head = nn.Linear(12, VOCAB)

    def forward(self, ids):
        hidden, _ = self.gru(self.embed(ids))
        return self.head(hidden)


def weighted_loss(logits, targets):
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    rarity = torch.log1p(torch.arange(VOCAB, dtype=torch.float32))
    weight = rarity[targets]  # fails: factory
    return (losses * weight).sum() / weight.sum().clamp(min=1e-6)


def build():
    model = NextWord()
    return model, torch.optim.Adam(model.parameters(), lr=3e-4), torch.randint(0, VOCAB, (3, 7))


def step(model, optimizer, ids):
    ids = ids.to(next(model.parameters()).device)
    loss = weighted_loss(model(ids[:, :-1]), ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)
