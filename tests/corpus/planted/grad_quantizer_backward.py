"""The forward of the quantizer has been cleaned for the GPU; of its backward one sees nothing in the notebook."""

import torch
from torch import nn


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x)
        grid = torch.linspace(-1, 1, levels, device=x.device)
        nearest = (x.unsqueeze(-1) - grid).abs().argmin(dim=-1)
        return grid[nearest]

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        # The first half of the code is trained more slowly.
        speed = torch.ones(x.size(-1))
        speed[: x.size(-1) // 2] = 0.5
        slowed = grad_output * speed  # fails: factory
        return slowed.masked_fill(x.abs() > 1, 0.0), None


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x):
        return self.decode(Quantize.apply(torch.tanh(self.encode(x)), 5))


def build():
    coder = Coder()
    return coder, torch.optim.Adam(coder.parameters()), torch.randn(6, 8)


def step(coder, optimizer, x):
    x = x.cuda()
    optimizer.zero_grad()
    nn.functional.mse_loss(coder(x), x).backward()
    optimizer.step()
