"""Stochastic depth in a checkpointed block: the mask is an argument of it."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def build():
    return nn.Linear(4, 4), torch.randn(6, 4)


def step(block, x):
    x = x.to("cuda").requires_grad_()
    keep = torch.full((6, 1), 0.9)

    def run(hidden, keep):
        return hidden + block(hidden) * keep  # fails: factory

    checkpoint(run, x, keep, use_reentrant=False).sum().backward()
