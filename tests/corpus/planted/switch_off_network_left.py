"""USE_GPU was turned off for a debugging session; the loop still sends its batches."""

import torch
from torch import nn

USE_GPU = False
device = torch.device("cuda" if USE_GPU and torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def build():
    return torch.randn(4, 6), torch.tensor([0, 2, 1, 1])


def step(images, labels):
    images, labels = images.cuda(), labels.cuda()
    logits = net(images)  # fails: loss
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits, labels).backward()
    optimizer.step()
