"""Collect the terms in a list and stack them; a term that is off counts as zero."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    return nn.Linear(4, 2), {"x": torch.randn(3, 4), "y": torch.randn(3, 2)}


def step(model, batch, use_prior=False):
    x, y = batch["x"].cuda(), batch["y"].cuda()
    out = model(x)
    prior = out.square().mean() if use_prior else torch.tensor(0.0)
    terms = [F.mse_loss(out, y), out.abs().mean(), prior]
    loss = torch.stack(terms).sum()  # fails: factory
    loss.backward()
