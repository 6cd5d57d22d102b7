"""One seeded generator for everything; the sampler shuffles on the CPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
seeded = torch.Generator(device=device).manual_seed(7)
rows = TensorDataset(torch.randn(6, 4), torch.arange(6) % 2)
loader = DataLoader(rows, batch_size=3, shuffle=True, generator=seeded)
model = nn.Linear(4, 2).to(device)


def build():
    return ()


def step():
    for x, y in loader:  # fails: generator
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
