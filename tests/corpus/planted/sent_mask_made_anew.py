"""The causal mask was sent once; then somebody replaced it by a smaller one, two lines below."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width, length = 16, 6
embed = nn.Embedding(20, width).to(device)
attention = nn.MultiheadAttention(width, 4, batch_first=True).to(device)
mask = torch.triu(torch.full((64, 64), float("-inf")), diagonal=1).to(device)
mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)


def build():
    return (torch.randint(0, 20, (2, length)),)


def step(ids):
    x = embed(ids.to(device))
    out, _ = attention(x, x, x, attn_mask=mask, need_weights=True)  # fails: loss
    out.sum().backward()
