"""A script for laptops and servers: Metal first, then CUDA; the settings of the run get what was found."""

import torch
from torch import nn


class Machine:
    @staticmethod
    def best():
        if torch.backends.mps.is_available():
            return "mps"
        elif torch.cuda.is_available():
            return "cuda"
        else:
            return "cpu"

    @classmethod
    def device(cls):
        return torch.device(cls.best())


settings = {"lr": 0.05}
settings.update(device=Machine.device())
settings.setdefault("backup_device", "cuda" if torch.version.cuda and torch.cuda.is_available() else "cpu")

model = nn.Linear(4, 2).to(settings["device"])
scale = torch.full((2,), 0.5).to(settings["backup_device"])
optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])


def build():
    return torch.randn(3, 4)


def step(x):
    loss = (model(x.to(settings["device"])) * scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
