"""The table has a name on each device, and each is read where it is."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
table = torch.rand(4)
table_gpu = table.to(device)


def build():
    return nn.Linear(4, 4), torch.randn(3, 4)


def step(model, x):
    x = x * table
    (model(x.to(device)) * table_gpu).sum().backward()
