"""Losses and predictions of the epoch are collected in host memory on purpose, and only read there."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
log_device = torch.device("cpu")

loss_log = torch.zeros(8, device=log_device)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def build():
    return ([(torch.randn(3, 4), torch.tensor([0, 1, 1])) for _ in range(3)],)


def step(loader):
    predictions, wanted = [], []
    for i, (x, y) in enumerate(loader):
        logits = model(x.to(device))
        loss = F.cross_entropy(logits, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_log[i] = loss.detach()
        predictions.append(logits.detach().argmax(dim=1).to(log_device))
        wanted.append(y)
    accuracy = (torch.cat(predictions) == torch.cat(wanted)).float().mean()
    return loss_log[: len(loader)].mean() + 0 * accuracy
