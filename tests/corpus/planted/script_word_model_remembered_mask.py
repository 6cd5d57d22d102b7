"""A transformer over words makes its causal mask once; a trial run before the move has already made it."""

import math

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}
device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


class TransformerModel(nn.Module):
    def __init__(self, ntoken, width=8):
        super().__init__()
        self.src_mask = None
        self.width = width
        self.embed = nn.Embedding(ntoken, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.decoder = nn.Linear(width, ntoken)

    def forward(self, src):
        if self.src_mask is None or self.src_mask.size(0) != src.size(1):
            self.src_mask = torch.full((src.size(1), src.size(1)), -math.inf, device=src.device).triu(1)
        h = self.embed(src) * math.sqrt(self.width)
        scores = self.query(h) @ self.key(h).transpose(-2, -1) / math.sqrt(self.width)
        attention = (scores + self.src_mask).softmax(-1)  # fails: attribute
        return self.decoder(attention @ self.value(h))


def build():
    model = TransformerModel(12)
    words = torch.randint(0, 12, (2, 6))
    with torch.no_grad():
        assert model(words[:, :-1]).shape == (2, 5, 12)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), words


def step(model, optimizer, words):
    words = words.to(device)
    logits = model(words[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
