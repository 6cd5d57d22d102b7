"""Mixup in a flat script: the permutation may stay on the CPU, the one-hot targets may not."""

import numpy as np
import torch
from torch import nn

FORCED_DEVICE = None
device = torch.device(FORCED_DEVICE or ("cuda" if torch.cuda.is_available() else "cpu"))
num_classes, alpha = 3, 0.4
rng = np.random.default_rng(0)


def one_hot(y):
    return torch.zeros(y.size(0), num_classes).scatter_(1, y.unsqueeze(1), 1.0)  # fails: factory


def mixup(x, y):
    lam = float(rng.beta(alpha, alpha))
    perm = torch.randperm(x.size(0))
    targets = one_hot(y)
    return lam * x + (1 - lam) * x[perm], lam * targets + (1 - lam) * targets[perm]


def build():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
    return model, optimizer, (torch.rand(6, 3, 5, 5), torch.tensor([0, 1, 2, 2, 1, 0]))


def step(model, optimizer, batch):
    images, labels = (t.to(device) for t in batch)
    images, targets = mixup(images, labels)
    loss = -(targets * model(images).log_softmax(dim=1)).sum(dim=1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
