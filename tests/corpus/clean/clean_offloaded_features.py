"""Features go to the host and stay there; everything about them happens there."""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU()).eval(), [], torch.randn(3, 4), torch.randn(5, 6)


@torch.no_grad()
def step(model, kept, x, gallery):
    features = model(x.to("cuda"))
    kept.append(features.cpu())
    return torch.cdist(torch.cat(kept), gallery).argsort(dim=1)
