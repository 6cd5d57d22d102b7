"""Random erasing writes noise of the host into images on the card: assignment copies across devices."""

import random

import torch
import torch.nn.functional as F
from torch import nn


def erase(images, rng, side=3):
    _, channels, height, width = images.shape
    for i in range(len(images)):
        top, left = rng.randrange(height - side), rng.randrange(width - side)
        images[i, :, top : top + side, left : left + side] = torch.rand(channels, side, side)
    images[0, 0] = torch.zeros(height, width, device="cpu")
    return images


class Bank:
    """The last features, on the host, for a plot at the end."""

    def __init__(self, size, width):
        self.rows = torch.empty(size, width, device="cpu")
        self.at = 0

    def add(self, features):
        self.rows[self.at : self.at + len(features)] = features
        self.at = (self.at + len(features)) % len(self.rows)


def build():
    body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1))
    net = nn.ModuleDict({"body": body, "head": nn.Linear(8, 3)})
    return net, torch.optim.AdamW(net.parameters()), torch.rand(4, 3, 9, 9), torch.tensor([0, 2, 1, 2])


def step(net, optimizer, images, labels):
    bank = Bank(16, 8)
    images = erase(images.to("cuda"), random.Random(0))
    features = net["body"](images).flatten(1)
    loss = F.cross_entropy(net["head"](features), labels.to(features.device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bank.add(features.detach())
    print("spread", bank.rows[: bank.at].std(dim=0).mean().item())
