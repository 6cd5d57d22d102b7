"""The images are moved; the labels are only numbers."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, nn.CrossEntropyLoss(), (torch.randn(2, 1, 4, 4), torch.tensor([3, 1]))


def step(model, optimizer, criterion, batch):
    images, labels = batch
    images = images.to("cuda")
    loss = criterion(model(images), labels)  # fails: input
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
