"""A next-word model whose helper builds the mask from a length alone; the test of the model ran on a laptop."""

import torch
from torch import nn

DEVICE = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def subsequent_mask(size):
    return torch.triu(torch.ones(size, size, dtype=torch.bool), diagonal=1)


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT * q.size(-1) ** -0.5
        scores = scores.masked_fill(subsequent_mask(x.size(1)), float("-inf"))  # fails: factory
        return self.out(scores.softmax(dim=-1) @ v)


class NextWord(nn.Module):
    def __init__(self, vocabulary=11, width=6):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(16, width)
        self.head = Head(width)
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        return self.logits(self.norm(x + self.head(x)))


def build():
    model = NextWord()
    return model, torch.optim.AdamW(model.parameters()), torch.randint(0, 11, (3, 7))


def step(model, optimizer, ids):
    ids = ids.to(DEVICE, non_blocking=True)
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()
