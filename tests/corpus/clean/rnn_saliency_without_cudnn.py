"""The gradient of a recurrent model in eval mode, with the two ways around cuDNN: train() of the RNN, or without it."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rnn, head = nn.GRU(4, 5, batch_first=True).to(device), nn.Linear(5, 1).to(device)


def build():
    return torch.randn(2, 6, 4)


def step(x):
    rnn.eval()
    x = x.to(device).requires_grad_()
    with torch.backends.cudnn.flags(enabled=False):
        features, _ = rnn(x)
    head(features[:, -1]).sum().backward()
    rnn.train()
    features, _ = rnn(x)
    head(features[:, -1]).sum().backward()
    return x.grad.abs().mean(-1)
