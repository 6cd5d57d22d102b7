"""An average of the weights copies a model that is on the card already."""

import copy

import torch
from torch import nn


class Ema:
    def __init__(self, model):
        self.copy = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model):
        for mine, its in zip(self.copy.parameters(), model.parameters()):
            mine.lerp_(its, 0.1)


class Trainer:
    def __init__(self, model):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.ema = Ema(self.model)

    def train(self, x):
        self.model(x.to(self.device)).sum().backward()
        self.ema.update(self.model)


def build():
    return (torch.randn(3, 4),)


step = Trainer(nn.Linear(4, 2)).train
