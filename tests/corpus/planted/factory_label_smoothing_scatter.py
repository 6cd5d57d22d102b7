"""Smooth labels: a little everywhere, most on the right class."""

import torch
import torch.nn.functional as F
from torch import nn


def smooth(labels, classes, eps=0.1):
    return torch.full((labels.size(0), classes), eps / classes).scatter(1, labels[:, None], 1 - eps)  # fails: factory


def build():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    return model, {"image": torch.randn(3, 3, 2, 2), "label": torch.tensor([4, 0, 2])}


def step(model, batch):
    image = batch["image"].to("cuda")
    target = smooth(batch["label"].to("cuda"), 5)
    loss = F.kl_div(F.log_softmax(model(image), dim=-1), target, reduction="batchmean")
    loss.backward()
