"""The collate function returns a Batch that knows how to move itself, as nn.Module does."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batch:
    def __init__(self, tokens, target):
        self.tokens, self.target = tokens, target

    def to(self, device):
        return Batch(self.tokens.to(device), self.target.to(device))

    def __len__(self):
        return self.tokens.size(0)


class Sentences(Dataset):
    def __init__(self, n=6):
        self.rows = [(list(range(1, 2 + i % 4)), float(i % 2)) for i in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    longest = max(len(words) for words, _ in rows)
    tokens = torch.tensor([words + [0] * (longest - len(words)) for words, _ in rows])
    return Batch(tokens, torch.tensor([target for _, target in rows]))


def build():
    model = nn.Sequential(nn.EmbeddingBag(8, 6, padding_idx=0), nn.Linear(6, 1), nn.Flatten(0))
    return model, torch.optim.Adagrad(model.parameters()), DataLoader(Sentences(), batch_size=3, collate_fn=collate)


def step(model, optimizer, loader):
    device = torch.device("cuda")
    seen = 0
    for batch in loader:
        batch.to(device)
        optimizer.zero_grad()
        logits = model(batch.tokens)  # fails: thrown-away
        loss = F.binary_cross_entropy_with_logits(logits, batch.target)
        loss.backward()
        optimizer.step()
        seen += len(batch)
    return seen
