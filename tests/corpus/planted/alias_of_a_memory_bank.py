"""The bank has a copy on the card, and the similarity is taken with the bank."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
bank = torch.rand(5, 4)
bank_gpu = bank.to(device)


def build():
    return nn.Linear(6, 4), torch.randn(3, 6)


def step(encoder, x):
    query = encoder(x.to(device))
    near = query @ bank_gpu.t()
    scores = query @ bank.t()  # fails: loss
    (scores - near).sum().backward()
