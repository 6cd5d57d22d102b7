"""CutMix with the box from numpy and everything else where the images are; labels are mixed in the loss."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def cutmix(images, rng, alpha=1.0):
    lam = rng.beta(alpha, alpha)
    height, width = images.shape[-2:]
    side = int(np.sqrt(1 - lam) * min(height, width))
    top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
    partner = torch.randperm(images.size(0), device=images.device)
    mixed = images.clone()
    box = (..., slice(top, top + side), slice(left, left + side))
    mixed[box] = images[partner][box]
    return mixed, partner, 1 - side * side / (height * width)


class Net(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def build():
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.1), (torch.rand(4, 3, 8, 8), torch.randint(0, 5, (4,)))


def step(net, optimizer, batch):
    images, labels = [t.cuda() for t in batch]
    images, partner, share = cutmix(images, np.random.default_rng(5))
    logits = net(images)
    loss = share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels[partner])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        return (logits.argmax(1) == labels).sum().item() / len(labels)
