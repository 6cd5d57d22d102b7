"""A backward hook gives every unit its own learning speed below the middle layer."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


def slow_down(layer, slowest=0.1):
    speeds = torch.linspace(slowest, 1.0, layer.in_features)

    def hook(module, grad_input, grad_output):
        (grad,) = grad_input
        return (grad * speeds,)  # fails: closure

    return layer.register_full_backward_hook(hook)


def build():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    slow_down(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, (torch.randn(6, 5), torch.tensor([0, 1, 2, 2, 1, 0]))


def step(model, optimizer, batch):
    inputs, targets = batch[0].to("cuda"), batch[1].to("cuda")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if loss < 0.01:
        print("done")
