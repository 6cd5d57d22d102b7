"""One dropout mask for all time steps; the device is an argument whose default suited my laptop."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class LockedDropout(nn.Module):
    def __init__(self, p=0.3, device="cpu"):
        super().__init__()
        self.p, self.device = p, device

    def forward(self, x):
        if not self.training or not self.p:
            return x
        keep = torch.empty(x.size(0), 1, x.size(2), device=self.device).bernoulli_(1 - self.p)
        return x * keep / (1 - self.p)  # fails: stale-device


class Tagger(nn.Module):
    def __init__(self, features=5, hidden=6, tags=4):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, batch_first=True, bidirectional=True)
        self.dropout = LockedDropout()
        self.tag = nn.Linear(2 * hidden, tags)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.tag(self.dropout(out))


def build():
    model = Tagger()
    return model, torch.optim.AdamW(model.parameters()), torch.randn(2, 6, 5), torch.randint(0, 4, (2, 6))


def step(model, optimizer, x, tags):
    optimizer.zero_grad()
    logits = model(x.cuda())
    nn.functional.cross_entropy(logits.permute(0, 2, 1), tags.cuda()).backward()
    optimizer.step()
