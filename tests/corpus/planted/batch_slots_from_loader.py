"""A slotted batch class made by collate_fn; its to() returns a new batch, which nobody takes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class Batch:
    __slots__ = ("ids", "padding", "target")

    def __init__(self, ids, padding, target):
        self.ids, self.padding, self.target = ids, padding, target

    def to(self, device, non_blocking=False):
        return Batch(*(getattr(self, slot).to(device, non_blocking=non_blocking) for slot in self.__slots__))


def collate(samples):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(words) for words, _ in samples], batch_first=True)
    return Batch(ids, ids == 0, torch.tensor([label for _, label in samples]))


class Pooler(nn.Module):
    def __init__(self, vocab=12, width=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.score, self.head = nn.Linear(width, 1), nn.Linear(width, 2)

    def forward(self, ids, padding):
        words = self.embed(ids)  # fails: thrown-away
        score = self.score(words).squeeze(-1)
        weight = score.masked_fill(padding, -1e4).softmax(dim=1)
        return self.head((weight.unsqueeze(-1) * words).sum(dim=1))


def build():
    samples = [([3, 5, 8], 0), ([2, 9], 1), ([4], 1), ([7, 1, 6, 10], 0)]
    model = Pooler()
    loader = DataLoader(samples, batch_size=2, collate_fn=collate)
    return model, torch.optim.Adam(model.parameters()), loader


def step(model, optimizer, loader):
    for batch in loader:
        batch.to("cuda", non_blocking=True)
        logits = model(batch.ids, batch.padding)
        loss = F.cross_entropy(logits, batch.target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
