"""The batch has a `to` of its own, which forgets one of its tensors."""

import torch
from torch import nn


class Graph:
    def __init__(self, x, bias):
        self.x, self.bias = x, bias

    def to(self, device):
        self.x = self.x.to(device)
        return self


def build():
    return nn.Linear(5, 2), Graph(torch.randn(3, 5), torch.ones(3))


def step(model, graph):
    graph = graph.to("cuda")
    (model(graph.x) + graph.bias[:, None]).sum().backward()  # fails: input
