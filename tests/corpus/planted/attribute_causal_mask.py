"""The causal mask never trains, so it does not need to be a parameter or anything special."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class CausalAttention(nn.Module):
    def __init__(self, width=8, heads=2, longest=10):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.keep = torch.tril(torch.ones(longest, longest, dtype=torch.bool))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5
        keep = self.keep[:n, :n]
        scores = scores.masked_fill(~keep, float("-inf"))  # fails: attribute
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w)
        return x + self.out(mixed)


def build():
    model = CausalAttention()
    return model, torch.optim.AdamW(model.parameters()), torch.randn(2, 5, 8)


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x.cuda()).square().mean()
    loss.backward()
    optimizer.step()
