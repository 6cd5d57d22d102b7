"""A loop sends the networks of a dict; the critic joined the dict below it."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
nets = {"encoder": nn.Linear(5, 3), "decoder": nn.Linear(3, 5)}
for net in nets.values():
    net.to(device)
nets["critic"] = nn.Linear(3, 1)


def build():
    return torch.randn(4, 5)


def step(x):
    x = x.to(device)
    code = nets["encoder"](x)
    loss = (nets["decoder"](code) - x).square().mean()
    loss = loss + nets["critic"](code).mean()  # fails: loss
    loss.backward()
