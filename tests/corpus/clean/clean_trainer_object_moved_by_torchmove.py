"""One trainer object holds everything and knows its device."""

import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self):
        self.device = torch.device("cpu")
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.class_weight = torch.tensor([1.0, 2.0, 0.5])

    def train_step(self, batch):
        x, y = (t.to(self.device) for t in batch)
        loss = F.cross_entropy(self.model(x), y, weight=self.class_weight)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def build():
    return Trainer(), (torch.randn(4, 4), torch.tensor([0, 1, 2, 1]))


def step(trainer, batch):
    trainer.train_step(batch)
