"""Packed sequences want their lengths on the CPU, so the lengths stay there."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

OPTIONS = {"data": "real"}


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(out)


def build():
    return Reader(), {"x": torch.randn(3, 6, 4), "lengths": torch.tensor([6, 4, 2])}


def step(model, batch):
    model(batch["x"].to("cuda"), batch["lengths"]).square().mean().backward()
