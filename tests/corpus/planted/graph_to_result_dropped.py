"""My graph's to() works like that of a tensor; I used it like that of a module."""

import torch
from torch import nn


class Graph:
    def __init__(self, **fields):
        vars(self).update(fields)

    def to(self, device):
        return Graph(**{name: field.to(device) for name, field in vars(self).items()})


class EdgeNetwork(nn.Module):
    def __init__(self, node=3, edge=2, width=5):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(edge, width), nn.SiLU())
        self.node = nn.Linear(node, width)
        self.update = nn.GRUCell(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, g):
        gate = self.edge(g.edge_attr)  # fails: thrown-away
        h = self.node(g.x)
        sender, receiver = g.edge_index
        for _ in range(2):
            message = gate * h[sender]
            where = receiver.unsqueeze(1).expand(-1, message.size(1))
            total = torch.zeros_like(h).scatter_add_(0, where, message)
            h = self.update(total, h)
        return self.out(h).squeeze(1)


def build():
    graph = Graph(
        x=torch.randn(4, 3),
        edge_index=torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 0, 3]]),
        edge_attr=torch.rand(5, 2),
        y=torch.randn(4),
    )
    model = EdgeNetwork()
    return model, torch.optim.AdamW(model.parameters()), graph


def step(model, optimizer, graph):
    graph.to("cuda")
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(graph), graph.y)
    loss.backward()
    optimizer.step()
