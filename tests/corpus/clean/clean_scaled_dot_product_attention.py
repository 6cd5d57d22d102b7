"""torch's own attention with a boolean mask of the batch."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x, keep):
        k, v = self.kv(x).chunk(2, dim=-1)
        return F.scaled_dot_product_attention(self.q(x), k, v, attn_mask=keep[:, None, :])


def build():
    return Attention(), {"x": torch.randn(2, 5, 8), "keep": torch.ones(2, 5, dtype=torch.bool)}


def step(model, batch):
    batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
    model(**batch).square().mean().backward()
