"""A namespace serves as the batch; a helper goes into lists and dicts and leaves the rest as it is."""

from types import SimpleNamespace

import torch
from torch import nn


def send(thing, device):
    if isinstance(thing, torch.Tensor):
        return thing.to(device)
    if isinstance(thing, SimpleNamespace):
        return SimpleNamespace(**{key: send(value, device) for key, value in vars(thing).items()})
    if isinstance(thing, dict):
        return {key: send(value, device) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing)(send(value, device) for value in thing)
    return thing


class Fusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({"sound": nn.Linear(5, 4), "sight": nn.Linear(7, 4)})
        self.gate = nn.Parameter(torch.zeros(2))
        self.head = nn.Linear(4, 1)

    def forward(self, batch):
        towers = [self.towers[name](value) for name, value in batch.features.items()]
        mixed = torch.stack(towers, dim=1) * self.gate.softmax(0).view(1, 2, 1)
        return [self.head(mixed[rows].sum(1)).squeeze(1) for rows in batch.groups]


def build():
    batch = SimpleNamespace(
        features={"sound": torch.randn(4, 5), "sight": torch.randn(4, 7)},
        groups=[torch.tensor([0, 2]), torch.tensor([1, 2, 3])],
        targets=(torch.rand(2), torch.rand(3)),
        name="minutes of the meeting",
        epoch=1,
    )
    model = Fusion()
    return model, torch.optim.NAdam(model.parameters()), batch


def step(model, optimizer, batch):
    batch = send(batch, torch.device("cuda", 0))
    optimizer.zero_grad()
    loss = sum(nn.functional.l1_loss(p, t) for p, t in zip(model(batch), batch.targets))
    loss.backward()
    optimizer.step()
