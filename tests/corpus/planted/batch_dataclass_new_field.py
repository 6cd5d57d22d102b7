"""The weight of each sample came in late as a new field, and the old to() does not know of it."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Batch:
    numeric: torch.Tensor
    category: torch.Tensor
    price: torch.Tensor
    weight: torch.Tensor

    def to(self, device):
        self.numeric = self.numeric.to(device)
        self.category = self.category.to(device)
        self.price = self.price.to(device)
        return self


class PriceModel(nn.Module):
    def __init__(self, numeric=4, categories=6, width=3):
        super().__init__()
        self.category = nn.Embedding(categories, width)
        self.body = nn.Sequential(nn.Linear(numeric + width, 8), nn.ELU(), nn.Linear(8, 1))

    def forward(self, batch):
        features = torch.cat([batch.numeric, self.category(batch.category)], dim=1)
        return self.body(features).squeeze(1)


def weighted_error(prediction, batch):
    error = nn.functional.huber_loss(prediction, batch.price, reduction="none")
    return (error * batch.weight).sum() / batch.weight.sum()  # fails: input


def build():
    model = PriceModel()
    batch = Batch(torch.randn(5, 4), torch.tensor([0, 5, 2, 2, 1]), torch.rand(5), torch.tensor([1.0, 2, 1, 1, 3]))
    return model, torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.1), batch


def step(model, optimizer, batch):
    batch = batch.to("cuda")
    optimizer.zero_grad()
    weighted_error(model(batch), batch).backward()
    optimizer.step()
