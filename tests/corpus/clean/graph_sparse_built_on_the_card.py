"""The edges are sent over, and the sparse adjacency is normalised and built where they are."""

import torch
from torch import nn


def gcn_norm(edges, n):
    nodes = torch.arange(n, device=edges.device)
    edges = torch.cat([edges, edges.flip(0), nodes.expand(2, n)], dim=1)
    ones = torch.ones(edges.size(1), device=edges.device)
    degree = torch.zeros(n, device=edges.device).scatter_add_(0, edges[0], ones)
    scale = degree.pow(-0.5)
    scale[torch.isinf(scale)] = 0
    values = scale[edges[0]] * scale[edges[1]]
    return torch.sparse_coo_tensor(edges, values, (n, n), check_invariants=False).coalesce()


class GraphConvolution(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_in, fan_out))
        self.bias = nn.Parameter(torch.zeros(fan_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        return torch.sparse.mm(adj, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layers = nn.ModuleList([GraphConvolution(a, b) for a, b in zip(sizes, sizes[1:])])

    def forward(self, x, adj):
        for layer in self.layers[:-1]:
            x = layer(x, adj).relu()
        return self.layers[-1](x, adj)


def build():
    model = GCN(4, 8, 3)
    graph = {
        "features": torch.rand(7, 4),
        "edges": torch.tensor([[0, 0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 6]]),
        "labels": torch.tensor([0, 1, 2, 0, 1, 2, 0]),
        "train": torch.tensor([0, 2, 5]),
    }
    return model, torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4), graph


def step(model, optimizer, graph):
    graph = {name: value.to("cuda") for name, value in graph.items()}
    adj = gcn_norm(graph["edges"], graph["features"].size(0))
    optimizer.zero_grad()
    logits = model(graph["features"], adj)
    train = graph["train"]
    nn.functional.cross_entropy(logits[train], graph["labels"][train]).backward()
    optimizer.step()
