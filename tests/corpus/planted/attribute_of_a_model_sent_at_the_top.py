"""The model is sent to the chosen device at the top of the script; one of its tables is no buffer."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Positions(nn.Module):
    def __init__(self, length=6, width=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, width), nn.Linear(width, 11)
        self.angles = torch.outer(torch.arange(length), 1 / 10 ** (torch.arange(width) / width))

    def forward(self, ids):
        return self.head(self.embed(ids) + self.angles.sin())  # fails: attribute


model = Positions().to(device)
optimizer = torch.optim.Adam(model.parameters())


def build():
    return (torch.randint(0, 11, (3, 6)),)


def step(ids):
    ids = ids.to(device)
    loss = nn.functional.cross_entropy(model(ids).transpose(1, 2), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
