"""Attention over the edges of a graph, with a softmax for each receiving node."""

from typing import NamedTuple

import torch
from torch import nn


class Graph(NamedTuple):
    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor

    def to(self, device):
        return self._replace(x=self.x.to(device), edge_index=self.edge_index.to(device), y=self.y.to(device))


def edge_softmax(score, receiver, n):
    highest = score.new_full((n,), float("-inf")).scatter_reduce(0, receiver, score.detach(), reduce="amax")
    weight = (score - highest[receiver]).exp()
    total = weight.new_zeros(n).scatter_add(0, receiver, weight)
    return weight / total[receiver].clamp(min=1e-12)


class GATLayer(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.lin = nn.Linear(fan_in, fan_out, bias=False)
        self.att_src = nn.Parameter(torch.randn(fan_out) * 0.1)
        self.att_dst = nn.Parameter(torch.randn(fan_out) * 0.1)

    def forward(self, x, edge_index):
        sender, receiver = edge_index
        h = self.lin(x)
        score = (h @ self.att_src)[sender] + (h @ self.att_dst)[receiver]
        alpha = edge_softmax(nn.functional.leaky_relu(score, 0.2), receiver, x.size(0))
        return torch.zeros_like(h).index_add_(0, receiver, alpha.unsqueeze(1) * h[sender])


def build():
    graph = Graph(torch.randn(4, 3), torch.tensor([[0, 1, 2, 3, 0, 1], [1, 0, 1, 1, 2, 3]]), torch.tensor([0, 1, 1, 0]))
    layer = GATLayer(3, 2)
    return layer, torch.optim.Adam(layer.parameters()), [graph, graph._replace(x=torch.randn(4, 3))]


def step(layer, optimizer, graphs):
    device = layer.att_src.device
    losses = []
    for graph in graphs:
        graph = graph.to(device)
        losses.append(nn.functional.cross_entropy(layer(graph.x, graph.edge_index), graph.y))
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
