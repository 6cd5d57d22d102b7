"""Fine-tuning goes on after a dry run on the CPU."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Finetuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.temperature = torch.tensor([1.0, 1.5, 2.0])

    def forward(self, x):
        logits = self.head(self.body(x).relu())
        return logits / self.temperature  # fails: attribute


def build():
    model = Finetuned()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 2])
    for _ in range(2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    logits = model(x.to("cuda"))
    loss = F.cross_entropy(logits, y)  # fails: input
    loss.backward()
    optimizer.step()  # fails: optimizer
