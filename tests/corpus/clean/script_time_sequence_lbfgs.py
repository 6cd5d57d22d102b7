"""Sine waves in double precision, fitted with LBFGS on the device that a helper picks."""

import numpy as np
import torch
from torch import nn, optim


def pick_device(prefer_gpu=True):
    if prefer_gpu and torch.cuda.is_available():
        return torch.device("cuda")
    if prefer_gpu and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


device = pick_device()


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 6)
        self.lstm2 = nn.LSTMCell(6, 6)
        self.linear = nn.Linear(6, 1)

    def forward(self, waves, future=0):
        h_t = torch.zeros(waves.size(0), 6, dtype=torch.double, device=device)
        c_t = torch.zeros(waves.size(0), 6, dtype=torch.double).to(device)
        h_t2, c_t2 = torch.zeros_like(h_t), torch.zeros_like(c_t)
        outputs, steps = [], list(waves.split(1, dim=1))
        for i in range(len(steps) + future):
            value = steps[i] if i < len(steps) else outputs[-1]
            h_t, c_t = self.lstm1(value, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            outputs.append(self.linear(h_t2))
        return torch.cat(outputs, dim=1)


def build():
    seq = Sequence().double().to(device)
    waves = np.sin((np.arange(7) + np.arange(3)[:, None]) / 4.0)
    return seq, optim.LBFGS(seq.parameters(), lr=0.8, max_iter=3), nn.MSELoss(), torch.from_numpy(waves)


def step(seq, optimizer, criterion, data):
    source, target = data[:, :-1].to(device), data[:, 1:].to(device)

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(source), target)
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return seq(source, future=3).detach().cpu().numpy()
