"""The batch knows how to move itself, and everybody thinks that somebody else has called it."""

import torch
import torch.nn.functional as F
from torch import nn


class Data:
    def __init__(self, x, edge_index, y, batch, ptr):
        self.x, self.edge_index, self.y, self.batch, self.ptr = x, edge_index, y, batch, ptr

    @property
    def num_graphs(self):
        return self.ptr.numel() - 1

    def to(self, device):
        for key, value in list(self.__dict__.items()):
            setattr(self, key, value.to(device))
        return self


class GraphClassifier(nn.Module):
    def __init__(self, features=4, width=6, classes=2):
        super().__init__()
        self.inner, self.outer = nn.Linear(features, width), nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, data):
        h = self.inner(data.x)  # fails: input
        src, dst = data.edge_index
        around = torch.zeros_like(h).index_add_(0, dst, h[src])
        h = F.relu(self.outer(h + around))
        pooled = h.new_zeros(data.num_graphs, h.size(1))
        pooled.index_add_(0, data.batch, h)
        return self.head(pooled)


def build():
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]])
    nodes = torch.tensor([0, 0, 0, 1, 1])
    data = Data(torch.randn(5, 4), edges, torch.tensor([1, 0]), nodes, torch.tensor([0, 3, 5]))
    model = GraphClassifier()
    return model, torch.optim.Adam(model.parameters(), lr=5e-3), data


def step(model, optimizer, data):
    model.train()
    optimizer.zero_grad()
    out = model(data)
    loss = F.cross_entropy(out, data.y)
    loss.backward()
    optimizer.step()
