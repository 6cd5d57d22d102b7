"""The model is compiled when it is built; the training step does not change for it."""

import torch
import torch.nn.functional as F
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width=8, tokens=5):
        super().__init__()
        self.over_tokens = nn.Linear(tokens, tokens)
        self.over_width = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.register_buffer("order", torch.arange(tokens).flip(0))

    def forward(self, x):
        x = x + self.over_tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.over_width(x[:, self.order]).mean(dim=1)


def build():
    model = Mixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = torch.compile(model, backend="eager")
    return model, optimizer, torch.randn(3, 5, 8), torch.tensor([0, 7, 3])


def step(model, optimizer, x, y):
    x, y = x.to("cuda"), y.to("cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()
