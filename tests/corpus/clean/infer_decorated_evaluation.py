"""Evaluation under decorators, with a model that is a variable of the module."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)


@torch.no_grad()
def evaluate(batches):
    return sum(net(each.to(device)).argmax(1).sum() for each in batches)


@torch.inference_mode()
def predict(batch):
    return net(batch.to(device)).softmax(1).numpy(force=True)


def build():
    return ([torch.randn(3, 4) for _ in range(2)],)


def step(batches):
    evaluate(batches)
    predict(batches[0])
