"""The device is whatever accelerator there is; the flag that asks for it is on."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accel", action="store_true")
args = parser.parse_args(["--accel"])
if args.accel:
    device = torch.accelerator.current_accelerator()
else:
    device = torch.device("cpu")
net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)


def build():
    return torch.optim.Adam(net.parameters()), [torch.randn(4, 3) for _ in range(2)]


def step(optimizer, batches):
    for batch in batches:
        loss = net(batch.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
