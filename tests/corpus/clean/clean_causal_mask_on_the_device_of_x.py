"""The mask is made where the scores are."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class CausalAttention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5
        hidden = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w))


def build():
    model = CausalAttention()
    return model, torch.optim.AdamW(model.parameters()), torch.randn(2, 5, 8)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.cuda()).square().mean().backward()
    optimizer.step()
