"""build() makes the function that moves a batch; sample weights were added to the batch a year later."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def to_device(batch):
        x, y, *rest = batch
        return x.to(device), y.to(device), *rest

    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    rows = (torch.randn(6, 5), torch.randn(6), torch.rand(6))
    return model, optimizer, scheduler, to_device, rows


def step(model, optimizer, scheduler, to_device, rows):
    features, label, weight = to_device(rows)
    predicted = model(features).squeeze(-1)
    error = F.huber_loss(predicted, label, reduction="none")
    loss = (error * weight).sum() / weight.sum()  # fails: input
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return scheduler.get_last_lr()[0]
