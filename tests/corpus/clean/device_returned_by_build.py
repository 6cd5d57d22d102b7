"""As scripts are written that make everything in one function: it decides on the device and hands it on."""

import torch
from torch import nn


def build():
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda") if use_cuda else torch.device("cpu")
    model = nn.Linear(4, 2).to(device)
    loader = [(torch.randn(3, 4), torch.arange(3) % 2) for _ in range(2)]
    return model, device, loader, torch.optim.Adadelta(model.parameters())


def step(model, where, loader, optimizer):
    for data, target in loader:
        data, target = data.to(where), target.to(where)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()
