"""A siamese pair: two views of one image, in a list."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    encoder = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    views = [torch.randn(3, 8), torch.randn(3, 8)]
    return encoder, torch.optim.AdamW(encoder.parameters()), views


def step(encoder, optimizer, views):
    first = encoder(views[0].to("cuda"))
    second = encoder(views[1])  # fails: input
    loss = 1 - F.cosine_similarity(first, second).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
