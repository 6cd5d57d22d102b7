"""Tokens take turns at the experts; results are gathered in half to save memory."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class RoundRobin(nn.Module):
    def __init__(self, width=8, count=2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.experts = [
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(count)
        ]
        self.out = nn.Linear(width, width)

    def forward(self, tokens):
        x = self.norm(tokens)
        gathered = torch.zeros_like(x, dtype=torch.float16)
        for turn, expert in enumerate(self.experts):
            rows = torch.arange(turn, len(x), len(self.experts), device=x.device)
            y = expert(x[rows])  # fails: container
            gathered[rows] = y  # fails: error
        return tokens + self.out(gathered.float())


def build():
    model = RoundRobin()
    return model, torch.randn(6, 8)


def step(model, tokens):
    model(tokens.cuda()).pow(2).mean().backward()
