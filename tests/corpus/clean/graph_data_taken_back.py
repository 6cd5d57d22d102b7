"""The to() of my data class returns a new graph, and the name is bound again."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Data:
    def __init__(self, x, edge_index, y, batch, name="two rings"):
        self.x, self.edge_index, self.y, self.batch, self.name = x, edge_index, y, batch, name

    def to(self, device, *, non_blocking=False):
        moved = copy.copy(self)
        for key, value in vars(self).items():
            if torch.is_tensor(value):
                setattr(moved, key, value.to(device, non_blocking=non_blocking))
        return moved


class GINLayer(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.eps = nn.Parameter(torch.tensor(0.0))
        self.mlp = nn.Sequential(nn.Linear(fan_in, fan_out), nn.BatchNorm1d(fan_out), nn.ReLU())

    def forward(self, x, edge_index):
        neighbours = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.mlp((1 + self.eps) * x + neighbours)


class GIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GINLayer(2, 6), GINLayer(6, 6)])
        self.head = nn.Linear(6, 2)

    def forward(self, data):
        x = data.x
        for layer in self.layers:
            x = layer(x, data.edge_index)
        graphs = int(data.batch.max()) + 1
        return self.head(x.new_zeros(graphs, x.size(1)).index_add_(0, data.batch, x))


def build():
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    data = Data(torch.randn(6, 2), edges, torch.tensor([0, 1]), torch.tensor([0, 0, 0, 1, 1, 1]))
    model = GIN()
    return model, torch.optim.Adam(model.parameters()), data


def step(model, optimizer, data):
    data = data.to("cuda", non_blocking=True)
    loss = F.cross_entropy(model(data), data.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(data.name, loss.item())
