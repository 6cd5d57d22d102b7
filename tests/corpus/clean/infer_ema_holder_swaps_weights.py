"""The average of the weights lives in a holder with the model, and stands in for it during evaluation."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn


class Ema:
    def __init__(self, model, decay=0.95):
        self.model, self.decay = model, decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.steps = 0

    @torch.no_grad()
    def update(self):
        self.steps += 1
        rate = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, p in self.model.named_parameters():
            self.shadow[name].sub_((self.shadow[name] - p) * rate)

    @contextmanager
    def averaged(self):
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(self.shadow[name])
        try:
            yield self.model
        finally:
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    p.copy_(own[name])


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.SELU(), nn.Linear(8, 2))
    ema = Ema(model)
    return ema, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8), torch.randn(6, 4), torch.randint(0, 2, (6,))


def step(ema, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    optimizer.zero_grad()
    F.cross_entropy(ema.model(x), y).backward()
    optimizer.step()
    ema.update()
    with ema.averaged() as model, torch.inference_mode():
        accuracy = (model(x).argmax(-1) == y).float().mean()
    return accuracy.item()
