"""The strength of the reversal is a tensor with no dimensions, computed on the CPU from the progress of training."""

import torch
import torch.nn.functional as F
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(strength)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (strength,) = ctx.saved_tensors
        return -strength * grad, None


class Adversary(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
        self.task, self.secret = nn.Linear(7, 2), nn.Linear(7, 2)

    def forward(self, x, progress):
        strength = 2 / (1 + torch.exp(-10 * torch.tensor(progress))) - 1
        temperature = torch.tensor(0.5)
        h = self.encode(x)
        return self.task(h) / temperature, self.secret(Reverse.apply(h, strength))


def build():
    model = Adversary()
    batch = (torch.randn(6, 5), torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([1, 1, 0, 0, 1, 0]))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), batch


def step(model, optimizer, batch):
    x, y, secret = [t.to("cuda") for t in batch]
    loss = torch.tensor(0.0)
    for epoch in range(2):
        task, guess = model(x, progress=epoch / 2)
        loss = loss + F.cross_entropy(task, y) + F.cross_entropy(guess, secret)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
