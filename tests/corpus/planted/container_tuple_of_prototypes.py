"""A few-shot classifier holds its support set as a pair."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Prototypical(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
        self.support = (torch.randn(3, 6), ["cat", "dog", "fox"])

    def forward(self, image):
        centres, _names = self.support
        distance = torch.cdist(self.embed(image), centres)  # fails: container
        return -distance


def build():
    return Prototypical(), (torch.randn(4, 1, 4, 4), torch.tensor([0, 2, 1, 0]))


def step(model, batch):
    image, label = batch
    logits = model(image.to("cuda"))
    loss = nn.functional.cross_entropy(logits, label.to("cuda"))
    loss.backward()
