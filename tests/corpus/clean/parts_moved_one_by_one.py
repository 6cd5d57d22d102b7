"""Two parts of a model, each moved by a statement of its own."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.fc = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(self.features(x).relu())


model = Net()
model.features.to(device)
model.fc.to(device)


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()
