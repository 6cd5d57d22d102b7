"""The views are sent into a second list, and the target comes from the first."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Views:
    def __init__(self, views):
        self.views = views
        self.sent = [each.to(device) for each in views]
        self.net = nn.Linear(4, 4).to(device)

    def train(self):
        out = self.net(self.sent[0])
        loss = (out * self.views[1]).sum()  # fails: loss
        loss.backward()


def build():
    return ()


step = Views([torch.rand(3, 4), torch.rand(3, 4)]).train
