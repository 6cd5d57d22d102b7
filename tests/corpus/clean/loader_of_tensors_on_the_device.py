"""A small data set lives on the device as a whole, and the loader cuts it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
inputs, targets = torch.randn(8, 3), torch.arange(8) % 2
data = TensorDataset(inputs.to(device), targets.to(device))
loader = DataLoader(data, sampler=RandomSampler(data), batch_size=4)
model = nn.Linear(3, 2).to(device)


def build():
    return ()


def step():
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
