"""The blocks are in a Python list because their number is a setting."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Stack(nn.Module):
    def __init__(self, width=6, depth=2):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.blocks = [nn.Linear(width, width) for _ in range(depth)]
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(block(x))  # fails: container
        return self.head(x)


def build():
    model = Stack()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])


def step(model, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
