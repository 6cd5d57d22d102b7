"""Relative position buckets are kept per length in a dict."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class RelativeBias(nn.Module):
    def __init__(self, heads=2, reach=8):
        super().__init__()
        self.reach = reach
        self.bias = nn.Embedding(2 * reach + 1, heads)
        self._bucket_cache = {}

    def buckets(self, n, device):
        if n not in self._bucket_cache:
            place = torch.arange(n, device=device)
            self._bucket_cache[n] = (place[None] - place[:, None]).clamp(-self.reach, self.reach) + self.reach
        return self._bucket_cache[n]

    def forward(self, scores):
        index = self.buckets(scores.size(-1), scores.device)
        bias = self.bias(index)  # fails: cache
        return (scores + bias.permute(2, 0, 1)).softmax(-1)


def build():
    model = RelativeBias()
    model(torch.randn(1, 2, 6, 6))
    return model, torch.randn(3, 2, 6, 6)


def step(model, scores):
    out = model(scores.to("cuda"))
    out.square().sum().backward()
