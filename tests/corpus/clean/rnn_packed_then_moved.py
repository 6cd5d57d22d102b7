"""The sequences are packed by the collate function, on the CPU, and travel as a packed sequence."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import DataLoader


def collate(samples):
    sequences, labels = zip(*samples)
    return pack_sequence(sequences, enforce_sorted=False), torch.stack(labels)


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(10, 2)

    def forward(self, packed):
        out, (h, _) = self.lstm(packed)
        padded, lengths = pad_packed_sequence(out, batch_first=True)
        lengths = lengths.to(padded.device)
        rows = torch.arange(padded.size(0), device=padded.device)
        forwards = padded[rows, lengths - 1, :5]
        return self.head(torch.cat([forwards, h[-1]], dim=1))


def build():
    samples = [(torch.randn(n, 3), torch.tensor(n % 2)) for n in (4, 2, 6, 3)]
    model = LastState()
    return model, torch.optim.Adam(model.parameters()), DataLoader(samples, batch_size=2, collate_fn=collate)


def step(model, optimizer, loader):
    device = torch.device("cuda")
    for packed, labels in loader:
        packed, labels = packed.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(packed), labels)
        loss.backward()
        optimizer.step()
