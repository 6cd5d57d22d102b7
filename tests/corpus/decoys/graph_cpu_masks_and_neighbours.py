"""The table of sampled neighbours and the split of the nodes stay on the CPU; they only ever select rows."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class SampledConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.own, self.near = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, h, neighbours):
        return self.own(h) + self.near(h[neighbours].mean(dim=1))


def build():
    torch.manual_seed(0)
    n = 8
    graph = SimpleNamespace(
        x=torch.randn(n, 5),
        y=torch.randint(0, 3, (n,)),
        neighbours=torch.randint(0, n, (n, 3)),
        train_mask=torch.arange(n) < 5,
        test_nodes=torch.tensor([5, 6, 7]),
    )
    model = nn.ModuleList([SampledConv(5, 6), SampledConv(6, 3)])
    return model, torch.optim.Adam(model.parameters(), lr=0.01), graph


def step(model, optimizer, graph):
    x, y = graph.x.cuda(), graph.y.cuda()
    h = F.dropout(F.relu(model[0](x, graph.neighbours)), 0.5)
    logits = model[1](h, graph.neighbours)
    loss = F.cross_entropy(logits[graph.train_mask], y[graph.train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = logits[graph.test_nodes].argmax(dim=1) == y[graph.test_nodes]
    print(f"loss {loss.item():.3f}, test accuracy {right.float().mean().item():.2f}")
