"""The trainer may be told a device; where it is not, it asks for one in its constructor."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, loss_weights, device=None):
        self.device = device if device is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.optimizer = optimizer
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor(loss_weights, device=self.device))
        self.best_loss = float("inf")

    def _to_device(self, batch):
        return {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}

    def run_epoch(self, batches):
        running = torch.zeros((), device=self.device)
        for batch in map(self._to_device, batches):
            self.optimizer.zero_grad()
            keep = torch.rand(batch["x"].shape, device=self.device) > 0.1
            loss = self.criterion(self.model(batch["x"] * keep), batch["y"])
            loss.backward()
            self.optimizer.step()
            running += loss.detach()
        mean = running.item() / len(batches)
        if mean < self.best_loss:
            self.best_loss = mean
        return mean


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), [1.0, 2.0, 0.5])
    return trainer, [{"x": torch.randn(5, 4), "y": torch.tensor([0, 2, 1, 1, 0])} for _ in range(3)]


def step(trainer, batches):
    trainer.run_epoch(batches)
