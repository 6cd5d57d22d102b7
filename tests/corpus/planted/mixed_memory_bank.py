"""Momentum contrast: queries against a bank kept on the host and a global table of margins."""

import torch
import torch.nn.functional as F
from torch import nn

MARGINS = torch.tensor([0.0, 0.1, 0.2, 0.3])


def build():
    encoder = nn.Linear(6, 4)
    return encoder, torch.optim.SGD(encoder.parameters(), lr=0.1), torch.randn(4, 6), torch.randn(8, 4)


def step(encoder, optimizer, x, bank):
    query = F.normalize(encoder(x.to("cuda")), dim=-1)
    keys = F.normalize(bank.to("cuda"), dim=-1).to("cpu")
    logits = query @ keys.T  # fails: hard-coded
    logits = logits - MARGINS[:, None]  # fails: loss
    wanted = torch.zeros(logits.size(0), dtype=torch.long)
    loss = F.cross_entropy(logits / 0.07, wanted)  # fails: factory
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
