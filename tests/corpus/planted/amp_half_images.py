"""Images are sent as half to save bandwidth; under autocast in training that was fine, so validation does it too."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, classes)

    def forward(self, images):
        features = self.stem(images)  # fails: error
        return self.head(features.mean(dim=(2, 3)))


def to_device(images):
    return images.to("cuda").half().div(255)


def build():
    return Classifier(), torch.randint(0, 256, (4, 3, 6, 6), dtype=torch.uint8), torch.tensor([0, 3, 1, 2])


def step(model, images, labels):
    model.eval()
    labels = labels.to("cuda")
    with torch.no_grad():
        logits = model(to_device(images))
        right = (logits.argmax(1) == labels).sum()
    model.train()
    return right.item() / len(labels)
