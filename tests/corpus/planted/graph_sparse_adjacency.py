"""The graph never changes, so the model is given its sparse adjacency once and for all."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


def normalised(edges, n):
    loops = torch.arange(n).repeat(2, 1)
    edges = torch.cat([edges, edges.flip(0), loops], dim=1)
    degree = torch.bincount(edges[0], minlength=n).float()
    values = degree[edges[0]].rsqrt() * degree[edges[1]].rsqrt()
    return torch.sparse_coo_tensor(edges, values, (n, n), check_invariants=True).coalesce()


class GCN(nn.Module):
    def __init__(self, adjacency, features, classes, width=8):
        super().__init__()
        self.adjacency = adjacency
        self.first = nn.Linear(features, width, bias=False)
        self.second = nn.Linear(width, classes, bias=False)

    def propagate(self, h):
        return torch.sparse.mm(self.adjacency, h)  # fails: attribute

    def forward(self, x):
        h = F.relu(self.propagate(self.first(x)))
        return F.log_softmax(self.propagate(self.second(h)), dim=1)


def build():
    edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    model = GCN(normalised(edges, 6), features=5, classes=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    return model, optimizer, torch.randn(6, 5), torch.tensor([0, 0, 1, 1, 2, 2])


def step(model, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    optimizer.zero_grad()
    F.nll_loss(model(x), y).backward()
    optimizer.step()
