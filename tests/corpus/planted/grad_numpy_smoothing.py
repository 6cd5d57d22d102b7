"""A smoothing layer done in numpy; its backward was written later and tested on the CPU only."""

import numpy as np
import torch
from torch import nn

KERNEL = np.array([0.25, 0.5, 0.25])


def smooth(rows, kernel):
    return np.stack([np.convolve(row, kernel, mode="same") for row in rows])


class Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        rows = smooth(x.detach().cpu().numpy(), KERNEL)
        return torch.as_tensor(rows, dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx, grad_output):
        rows = grad_output.numpy()  # fails: numpy
        return torch.as_tensor(smooth(rows, KERNEL[::-1]), dtype=grad_output.dtype, device=grad_output.device)


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
    return model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(4, 6), torch.randn(4, 8)


def step(model, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    loss = (Smooth.apply(model(x)) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
