"""The table of confusions is a thing of the host, and so is everything that is entered into it."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--metric-device", type=torch.device, default="cpu")
args = parser.parse_args([])


class Confusion:
    def __init__(self, classes):
        self.table = torch.zeros(classes, classes, dtype=torch.long, device=args.metric_device)

    def add(self, wanted, got):
        cells = wanted * len(self.table) + got
        self.table += torch.bincount(cells, minlength=self.table.numel()).view_as(self.table)

    def accuracy(self):
        return self.table.trace() / self.table.sum()


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(args.device)
    data = [(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])), (torch.randn(3, 4), torch.tensor([2, 2, 0]))]
    return model, torch.optim.SGD(model.parameters(), lr=0.2), data


def step(model, optimizer, data):
    confusion = Confusion(3)
    for x, y in data:
        logits = model(x.to(args.device))
        loss = nn.functional.cross_entropy(logits, y.to(args.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        confusion.add(y, logits.detach().argmax(1).to(args.metric_device))
    return confusion.accuracy().item()
