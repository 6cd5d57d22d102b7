"""A loop over a dict calls to() of every table, as one does with modules, and drops the results."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
tables = {"gain": torch.ones(3), "offset": torch.zeros(3)}
for table in tables.values():
    table.to(device)


class Filter:
    def __init__(self):
        self.net = nn.Linear(3, 3).to(device)
        self.windows = [torch.hann_window(3), torch.hamming_window(3)]
        for window in self.windows:
            window.to(device)

    def __call__(self, x):
        return self.net(x) * self.windows[0]  # fails: loss


smooth = Filter()


def build():
    return torch.randn(4, 3)


def step(x):
    h = smooth(x.to(device))
    h = h * tables["gain"]  # fails: loss
    h.sum().backward()
