"""Some statistics of the batch are worked out on the CPU and used only as a scale once moved."""

import torch
from torch import nn


def build():
    return nn.Linear(6, 2), {"x": torch.randn(4, 6), "spread": torch.rand(6)}


def step(model, batch):
    centred = batch["x"] - batch["x"].mean(0)
    scaled = centred / (batch["spread"] + torch.ones(6))
    covariance = scaled.T @ scaled / 4
    x = (scaled @ covariance).to("cuda")
    model(x).square().mean().backward()
