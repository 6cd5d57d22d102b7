"""An imbalanced set, drawn with weights for several epochs, with patience on the validation loss."""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Rings(Dataset):
    def __init__(self, n=16, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = (rng.random(n) < 0.25).astype(np.int64)
        angle = rng.uniform(0, 2 * np.pi, n)
        radius = 1.0 + self.labels
        self.points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.points[i]), int(self.labels[i])


def build():
    train, valid = Rings(), Rings(8, seed=1)
    counts = np.bincount(train.labels, minlength=2)
    sampler = WeightedRandomSampler(torch.from_numpy(1.0 / np.maximum(counts, 1))[train.labels], len(train))
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    loaders = DataLoader(train, batch_size=8, sampler=sampler), DataLoader(valid, batch_size=4)
    return model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01), loaders


def step(model, criterion, optimizer, loaders, epochs=4, patience=2):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, valid = loaders
    best, bad, weights = math.inf, 0, None
    for _ in range(epochs):
        for points, labels in train:
            points, labels = points.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(points), labels)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            losses = [criterion(model(p.to(device)), y.to(device)).item() for p, y in valid]
        mean = sum(losses) / len(losses)
        if mean < best:
            best, bad, weights = mean, 0, copy.deepcopy(model.state_dict())
        else:
            bad += 1
            if bad >= patience:
                break
    model.load_state_dict(weights)
    return math.log(best)
