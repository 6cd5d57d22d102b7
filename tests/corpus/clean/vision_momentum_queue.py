"""Momentum contrast with its queue in a buffer, written at a pointer; the key encoder follows the query encoder."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Contrast(nn.Module):
    def __init__(self, dim=6, size=8, m=0.99, temperature=0.1):
        super().__init__()
        self.query = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, dim))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.m, self.temperature = m, temperature
        self.register_buffer("queue", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.queue_ptr)
        self.queue[at : at + len(keys)] = keys
        self.queue_ptr[0] = (at + len(keys)) % len(self.queue)

    def forward(self, one, two):
        q = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(two), dim=1)
        same = (q * k).sum(dim=1, keepdim=True)
        logits = torch.cat([same, q @ self.queue.clone().T], dim=1) / self.temperature
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def build():
    model = Contrast()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.05, weight_decay=1e-4)
    return model, optimizer, (torch.rand(4, 1, 6, 6), torch.rand(4, 1, 6, 6))


def step(model, optimizer, views):
    one, two = (view.to("cuda") for view in views)
    loss = model(one, two)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
