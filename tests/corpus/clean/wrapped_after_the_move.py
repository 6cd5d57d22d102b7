"""The model was moved, then frozen by a function and wrapped, each time under the same name."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def freeze(model):
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    return model


class Normed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return nn.functional.normalize(self.model(x), dim=1)


model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
model.to(device)
model = freeze(model)
model = Normed(model)


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()
