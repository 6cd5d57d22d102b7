"""The averaged copy is for inference only, so half precision is enough for it."""

import torch
import torch.nn.functional as F
from torch import nn


class Averaged:
    def __init__(self, model, decay=0.99):
        self.model = model
        self.decay = decay
        self.shadow = {name: value.detach().clone().half() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self):
        for name, value in self.model.state_dict().items():
            self.shadow[name].lerp_(value, 1 - self.decay)  # fails: error


def build():
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return Averaged(model), optimizer, torch.randn(6, 3), torch.randn(6, 1)


def step(averaged, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    loss = F.huber_loss(averaged.model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    averaged.update()
    return loss.item()
