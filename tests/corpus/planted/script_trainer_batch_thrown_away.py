"""The trainer decides about the device by itself, and calls to() on the batch the way one may on a model."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr=0.1, device=None):
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.best = float("inf")

    def fit(self, loader):
        for inputs, labels in loader:
            inputs.to(self.device)
            labels.to(self.device)
            self.optimizer.zero_grad()
            outputs = self.model(inputs)  # fails: thrown-away
            loss = self.criterion(outputs, labels)  # fails: thrown-away
            loss.backward()
            self.optimizer.step()
            if loss.item() < self.best:
                self.best = loss.item()


def build():
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))
    return Trainer(model), [(torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0]))]


def step(trainer, loader):
    trainer.fit(loader)
    return trainer.best
