"""The sharpest direction of the loss is found by products with the Hessian, and a penalty keeps it low."""

import torch
import torch.nn.functional as F
from torch import nn


def hessian_product(grads, params, vector):
    dot = sum((g * v).sum() for g, v in zip(grads, vector))
    return torch.autograd.grad(dot, params, retain_graph=True)


def normalise(vector):
    length = torch.sqrt(sum(v.square().sum() for v in vector))
    return [v / (length + 1e-12) for v in vector]


def sharpness(loss, params, rounds=3):
    grads = torch.autograd.grad(loss, params, create_graph=True)
    vector = normalise([torch.randn_like(p) for p in params])
    value = 0.0
    for _ in range(rounds):
        product = hessian_product(grads, params, vector)
        value = sum((p * v).sum() for p, v in zip(product, vector)).item()
        vector = normalise(product)
    return value, grads


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(8, 4), torch.arange(8) % 3)


def step(model, optimizer, batch):
    inputs, targets = (t.to("cuda") for t in batch)
    params = [p for p in model.parameters() if p.requires_grad]
    loss = F.cross_entropy(model(inputs), targets)
    value, grads = sharpness(loss, params)
    penalty = sum(g.square().sum() for g in grads)
    optimizer.zero_grad()
    (loss + 0.01 * penalty).backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}, sharpness {value:.4f}")
