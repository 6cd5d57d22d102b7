"""Pairs of images with a same-or-different label; the branch for the GPU lists the two images only."""

import numpy as np
import torch
from torch import nn

use_cuda = torch.cuda.is_available()


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))

    def forward(self, first, second):
        return self.trunk(first), self.trunk(second)


def contrastive_loss(distance, different, margin=1.0):
    apart = torch.clamp(margin - distance, min=0.0)
    return torch.mean((1 - different) * distance.pow(2) + different * apart.pow(2))  # fails: input


def build():
    net = SiameseNetwork()
    pairs = [(torch.rand(4, 1, 6, 6), torch.rand(4, 1, 6, 6), torch.tensor([0.0, 1.0, 1.0, 0.0]))]
    return net, torch.optim.Adam(net.parameters(), lr=5e-4), pairs


def step(net, optimizer, pairs):
    history = []
    for img0, img1, label in pairs:
        if use_cuda:
            img0 = img0.cuda()
            img1 = img1.cuda()
        out0, out1 = net(img0, img1)
        distance = nn.functional.pairwise_distance(out0, out1)
        loss = contrastive_loss(distance, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(distance.detach().numpy())  # fails: numpy
    return float(np.concatenate(history).mean())
