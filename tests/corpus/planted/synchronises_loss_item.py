"""The progress bar shows the loss of every step."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"data": "real"}


def build():
    model = nn.Linear(4, 3)
    return model, torch.optim.AdamW(model.parameters()), [], (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))


def step(model, optimizer, history, batch):
    x, y = (t.to("cuda") for t in batch)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    history.append(loss.item())  # fails: synchronizes
