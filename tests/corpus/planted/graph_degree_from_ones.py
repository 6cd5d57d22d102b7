"""Degrees are counted by adding a one for every edge."""

from collections import namedtuple

import torch
from torch import nn

Batch = namedtuple("Batch", "x edge_index y")


def degree(index, num_nodes):
    ones = torch.ones(index.numel())
    return torch.zeros(num_nodes).scatter_add_(0, index, ones)  # fails: factory


class MeanConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.own = nn.Linear(fan_in, fan_out)
        self.others = nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x, edge_index):
        source, target = edge_index
        total = x.new_zeros(x.shape).index_add(0, target, x[source])
        mean = total / degree(target, x.size(0)).clamp(min=1).unsqueeze(1)
        return self.own(x) + self.others(mean)


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([MeanConv(3, 6), MeanConv(6, 2)])

    def forward(self, x, edge_index):
        x = self.convs[0](x, edge_index).relu()
        return self.convs[1](x, edge_index)


def build():
    model = SAGE()
    batch = Batch(torch.randn(5, 3), torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1]]), torch.tensor([0, 1, 0, 1, 0]))
    return model, torch.optim.Adam(model.parameters()), batch


def step(model, optimizer, batch):
    batch = Batch(*(field.to("cuda") for field in batch))
    logits = model(batch.x, batch.edge_index)
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits, batch.y).backward()
    optimizer.step()
