"""Targets as one-hot rows, made by scatter on the device."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    return nn.Linear(5, 4), {"x": torch.randn(3, 5), "y": torch.tensor([3, 0, 1])}


def step(model, batch):
    x, y = batch["x"].cuda(), batch["y"].cuda()
    hot = torch.zeros(y.size(0), 4, device=y.device).scatter_(1, y[:, None], 1.0)
    soft = hot * 0.9 + 0.025
    loss = -(soft * F.log_softmax(model(x), dim=-1)).sum(-1).mean()
    loss.backward()
