"""The option --cuda was not given, so the prior is on the CPU; the encoder is on the card all the same."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--cuda", action="store_true")
args = parser.parse_args([])
device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
prior = torch.zeros(4, device=device)


def build():
    return nn.Linear(6, 4), torch.randn(3, 6)


def step(encoder, x):
    code = encoder(x.cuda())
    loss = (code - prior).square().mean()  # fails: loss
    loss.backward()
