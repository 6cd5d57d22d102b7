"""Cora from a text file: the function that loads it sends what it returns, and one of three was forgotten."""

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_cora(nodes=12):
    features = torch.rand(nodes, 8)
    labels = torch.arange(nodes) % 3
    adj = torch.eye(nodes)
    return features.to(device), labels, adj.to(device)


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x, adj):
        return adj @ (x @ self.kernel)


features, labels, adj = load_cora()
model = GraphConv(8, 3).to(device)
optimizer = torch.optim.Adam(model.parameters())


def build():
    return ()


def step():
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss = F.nll_loss(F.log_softmax(output, dim=1), labels)  # fails: loss
    loss.backward()
    optimizer.step()
