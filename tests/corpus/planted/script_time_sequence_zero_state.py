"""Time sequence prediction with two stacked cells; the first states are plain zeros of the right dtype."""

import numpy as np
import torch
from torch import nn


def get_device():
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 5)
        self.lstm2 = nn.LSTMCell(5, 5)
        self.linear = nn.Linear(5, 1)

    def forward(self, waves, future=0):
        n = waves.size(0)
        state1 = (torch.zeros(n, 5, dtype=torch.double), torch.zeros(n, 5, dtype=torch.double))
        state2 = None
        outputs = []
        for value in waves.split(1, dim=1):
            state1 = self.lstm1(value, state1)  # fails: factory
            state2 = self.lstm2(state1[0], state2)
            outputs.append(self.linear(state2[0]))
        for _ in range(future):
            state1 = self.lstm1(outputs[-1], state1)
            state2 = self.lstm2(state1[0], state2)
            outputs.append(self.linear(state2[0]))
        return torch.cat(outputs, dim=1)


def build():
    seq = Sequence().double()
    data = np.sin(np.arange(8)[None, :] / 3.0 + np.arange(3)[:, None])
    return seq, torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=2), torch.from_numpy(data)


def step(seq, optimizer, data):
    device = get_device()
    source, target = data[:, :-1].to(device), data[:, 1:].to(device)
    criterion = nn.MSELoss()

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(source), target)
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return criterion(seq(source, future=2)[:, :-2], target).item()
