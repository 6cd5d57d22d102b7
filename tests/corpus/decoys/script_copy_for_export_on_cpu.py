"""After the update a copy of the network goes back to the CPU, and is tried there on rows that never left it."""

import copy

import torch
from torch import nn


class Runner:
    def __init__(self, model, device=torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        self.device = device
        self.model = model
        self.model.to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train_batch(self, x, y):
        if x.device != self.device:
            x = x.to(self.device)
        loss = nn.functional.mse_loss(self.model(x), y.to(x.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def export(self, example):
        exported = copy.deepcopy(self.model).to("cpu").eval()
        with torch.no_grad():
            return exported(example)


def build():
    return Runner(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))), torch.randn(6, 3), torch.randn(6, 1)


def step(runner, x, y):
    runner.train_batch(x, y)
    error = runner.export(x) - y
    return error.abs().max().item()
