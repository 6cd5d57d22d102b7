"""Mixed precision in bfloat16, which needs no scaler."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    return model, torch.optim.AdamW(model.parameters()), torch.randn(4, 8), torch.tensor([0, 1, 2, 0])


def step(model, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
