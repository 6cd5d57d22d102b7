"""Domain labels are made from the sizes of the two batches, and the features are told to hide them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function


class ReverseGrad(Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.strength, None


class DomainAdversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.label = nn.Linear(8, 3)
        self.domain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x, strength):
        h = self.features(x)
        return self.label(h), self.domain(ReverseGrad.apply(h, strength)).squeeze(1)


def build():
    model = DomainAdversarial()
    source = (torch.randn(4, 6), torch.tensor([0, 1, 2, 1]))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), source, torch.randn(5, 6)


def step(model, optimizer, source, target):
    x, y = source[0].to("cuda"), source[1].to("cuda")
    both = torch.cat([x, target.to("cuda")])
    domains = torch.ones(len(both), device=both.device)
    domains[: len(x)] = 0.0
    labels, guesses = model(both, strength=0.3)
    loss = F.cross_entropy(labels[: len(x)], y) + F.binary_cross_entropy_with_logits(guesses, domains)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
