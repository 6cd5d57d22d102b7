"""A graph network over one graph: the sparse adjacency, features and labels are variables of the module."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
nodes = 6
ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
adjacency = torch.sparse_coo_tensor(ring, torch.ones(nodes), (nodes, nodes)).coalesce().to(device)
features = torch.randn(nodes, 5).to(device)
labels = (torch.arange(nodes) % 2).to(device)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(5, 8) * 0.1)
        self.second = nn.Parameter(torch.randn(8, 2) * 0.1)

    def forward(self, x, a):
        hidden = F.relu(torch.spmm(a, x @ self.first))
        return torch.spmm(a, hidden @ self.second)


model = GCN().to(device)


def build():
    return torch.optim.Adam(model.parameters())


def step(optimizer):
    optimizer.zero_grad()
    F.cross_entropy(model(features, adjacency), labels).backward()
    optimizer.step()
