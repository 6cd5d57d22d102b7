"""Stacked GRU cells: how many there are is a setting, so they are made in a loop."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class StackedGRU(nn.Module):
    def __init__(self, vocab=10, width=4, layers=3):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(vocab, width)
        self.cells = []
        for _ in range(layers):
            self.cells.append(nn.GRUCell(width, width))
        self.head = nn.Linear(width, vocab)

    def init_hidden(self, like):
        return [like.new_zeros(like.size(0), self.width) for _ in self.cells]

    def forward(self, ids):
        x = self.embed(ids)
        hidden = self.init_hidden(x)
        steps = []
        for t in range(x.size(1)):
            below = x[:, t]
            for i, cell in enumerate(self.cells):
                hidden[i] = below = cell(below, hidden[i])  # fails: container
            steps.append(below)
        return self.head(torch.stack(steps, dim=1))


def build():
    model = StackedGRU()
    return model, torch.optim.RMSprop(model.parameters()), torch.randint(0, 10, (2, 5))


def step(model, optimizer, ids):
    ids = ids.to("cuda", non_blocking=True)
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
