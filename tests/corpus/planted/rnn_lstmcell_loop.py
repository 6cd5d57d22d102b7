"""A hand-written loop over an LSTMCell, with the outputs put into a tensor made beforehand."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, features=3, hidden=5):
        super().__init__()
        self.hidden = hidden
        self.cell = nn.LSTMCell(features, hidden)
        self.head = nn.Linear(hidden, features)

    def init_hidden(self, batch):
        return torch.zeros(batch, self.hidden), torch.zeros(batch, self.hidden)

    def forward(self, series):
        batch, length, _ = series.shape
        h, c = self.init_hidden(batch)
        outputs = torch.zeros(batch, length, self.hidden)
        for t in range(length):
            h, c = self.cell(series[:, t], (h, c))  # fails: factory
            outputs[:, t] = h
        return self.head(outputs)  # fails: factory


def build():
    model = Forecaster()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2), nn.SmoothL1Loss(), torch.randn(2, 7, 3).cumsum(1)


def step(model, optimizer, criterion, series):
    series = series.to("cuda")
    prediction = model(series[:, :-1])
    loss = criterion(prediction, series[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
