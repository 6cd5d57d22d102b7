"""The model asks its parameters once where it lives."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Speaker(nn.Module):
    def __init__(self, hidden=5):
        super().__init__()
        self.cell = nn.GRUCell(3, hidden)
        self.hidden = hidden
        self.device = next(self.parameters()).device

    def forward(self, x):
        h = torch.zeros(x.size(0), self.hidden, device=self.device)
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)  # fails: stale-device
        return h


def build():
    model = Speaker()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 4, 3)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).square().sum().backward()
    optimizer.step()
