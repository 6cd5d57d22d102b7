"""Logit adjustment by the frequencies of the classes in the training set."""

import torch
import torch.nn.functional as F
from torch import nn

LOG_PRIOR = torch.tensor([0.7, 0.2, 0.1]).log()


def adjusted_loss(logits, labels, tau=1.0):
    return F.cross_entropy(logits + tau * LOG_PRIOR, labels)  # fails: loss


def build():
    return nn.Linear(5, 3), {"x": torch.randn(4, 5), "y": torch.tensor([2, 0, 0, 1])}


def step(model, batch):
    logits = model(batch["x"].to("cuda"))
    adjusted_loss(logits, batch["y"].to("cuda")).backward()
