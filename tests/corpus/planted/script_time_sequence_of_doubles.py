"""Sine waves made with numpy go into a recurrent cell; somebody removed the line that made the model double."""

import numpy as np
import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_waves(count, length, period=5.0):
    shift = np.random.RandomState(2).randint(-20, 20, (count, 1))
    return np.sin((np.arange(length)[None, :] + shift) / period)


class Sequence(nn.Module):
    def __init__(self, hidden=7):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, waves):
        h_t = torch.zeros(waves.size(0), self.hidden, dtype=waves.dtype, device=waves.device)
        c_t = torch.zeros_like(h_t)
        outputs = []
        for value in waves.split(1, dim=1):
            h_t, c_t = self.lstm1(value, (h_t, c_t))  # fails: error
            outputs.append(self.linear(h_t))
        return torch.cat(outputs, dim=1)


def build():
    seq = Sequence().to(DEVICE)
    return seq, nn.MSELoss(), torch.optim.SGD(seq.parameters(), lr=0.1), make_waves(4, 6)


def step(seq, criterion, optimizer, data):
    source = torch.from_numpy(data[:, :-1]).to(DEVICE)
    target = torch.from_numpy(data[:, 1:]).to(DEVICE)
    optimizer.zero_grad()
    loss = criterion(seq(source), target)
    loss.backward()
    optimizer.step()
    return loss.item()
