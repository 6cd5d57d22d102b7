"""A --gpu flag with the number of the card, minus one for none, and a warm start before the real training."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int, default=0)
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args([])
args.device = torch.device(f"cuda:{args.gpu}" if torch.cuda.is_available() and args.gpu >= 0 else "cpu")


class ResidualMLP(nn.Module):
    def __init__(self, width=6, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def update(model, optimizer, x, y):
    x, y = x.to(args.device), y.to(args.device)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def build():
    model = ResidualMLP()
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=args.momentum)
    update(model, optimizer, torch.randn(4, 6), torch.randn(4, 1))
    return model, optimizer, torch.randn(4, 6), torch.randn(4, 1)


def step(model, optimizer, x, y):
    first = update(model, optimizer, x, y)
    return update(model, optimizer, x, y) < first
