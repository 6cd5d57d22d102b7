"""The labels were stored as int32 by numpy, and the loader hands them on as they are."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
criterion = nn.CrossEntropyLoss()


def load_arrays(n=10):
    rng = np.random.default_rng(7)
    features = rng.normal(size=(n, 5)).astype(np.float32)
    labels = rng.integers(0, 3, size=n).astype(np.int32)
    return features, labels


def build():
    features, labels = load_arrays()
    dataset = TensorDataset(torch.from_numpy(features), torch.from_numpy(labels))
    model = nn.Sequential(nn.Linear(5, 12), nn.Dropout(0.1), nn.ReLU(), nn.Linear(12, 3))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), DataLoader(dataset, batch_size=5, shuffle=True)


def step(model, optimizer, loader):
    model.train()
    running_loss = 0.0
    for data, target in loader:
        target = target.to(device)
        optimizer.zero_grad()
        output = model(data)  # fails: input
        loss = criterion(output, target)  # fails: error
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(data)
    print(running_loss / len(loader.dataset))
