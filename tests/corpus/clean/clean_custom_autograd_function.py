"""A straight-through estimator written by hand."""

import torch
from torch import nn


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        inside = torch.zeros_like(x).masked_fill(x.abs() <= 1, 1.0)
        return grad * inside


def build():
    model = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 2)])
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 4)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model[1](Sign.apply(model[0](x.to("cuda")))).square().mean().backward()
    optimizer.step()
