"""The output layer shares its weight with the embedding."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class LanguageModel(nn.Module):
    def __init__(self, words=15, width=6):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def build():
    model = LanguageModel()
    return model, torch.optim.Adam(model.parameters()), torch.randint(0, 15, (2, 6))


def step(model, optimizer, tokens):
    tokens = tokens.to("cuda")
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
