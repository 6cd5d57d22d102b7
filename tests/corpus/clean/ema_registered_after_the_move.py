"""The average of many notebooks: a method fills its shadow, after the model was sent."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Ema:
    def __init__(self, model):
        self.model = model
        self.shadow = {}

    def register(self):
        for name, each in self.model.named_parameters():
            if each.requires_grad:
                self.shadow[name] = each.data.clone()

    def update(self):
        for name, each in self.model.named_parameters():
            if each.requires_grad:
                self.shadow[name] = 0.1 * each.data + 0.9 * self.shadow[name]


model = nn.Linear(4, 2).to(device)
ema = Ema(model)
ema.register()


def build():
    return (torch.randn(3, 4),)


def step(x):
    model(x.to(device)).sum().backward()
    ema.update()
