"""The importance weights of the samples came with the batch."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    model = nn.Linear(6, 3)
    batch = {"x": torch.randn(4, 6), "y": torch.tensor([0, 1, 2, 1]), "weight": torch.rand(4)}
    return model, torch.optim.Adam(model.parameters()), batch


def step(model, optimizer, batch):
    x, y = batch["x"].to("cuda"), batch["y"].to("cuda")
    each = F.cross_entropy(model(x), y, reduction="none")
    loss = (each * batch["weight"]).mean()  # fails: input
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
