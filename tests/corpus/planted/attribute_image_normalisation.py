"""The network normalises its own images, so callers cannot forget to."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, image):
        image = image - self.mean  # fails: attribute
        image = image / self.std  # fails: attribute
        return self.head(self.conv(image).relu().mean((2, 3)))


def build():
    return Classifier(), nn.CrossEntropyLoss(), (torch.rand(2, 3, 6, 6), torch.tensor([1, 3]))


def step(model, criterion, batch):
    image, label = (t.to("cuda", non_blocking=True) for t in batch)
    criterion(model(image), label).backward()
