"""to() leaves the lengths and the row numbers where they are, because both are wanted on the CPU."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


@dataclass
class AudioBatch:
    frames: torch.Tensor
    label: torch.Tensor
    lengths: torch.Tensor
    rows: torch.Tensor
    names: list = field(default_factory=list)

    def to(self, device):
        return AudioBatch(self.frames.to(device), self.label.to(device), self.lengths, self.rows, self.names)


class Listener(nn.Module):
    def __init__(self, bands=5, hidden=4, classes=3):
        super().__init__()
        self.rnn = nn.GRU(bands, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, batch):
        packed = pack_padded_sequence(batch.frames, batch.lengths, batch_first=True, enforce_sorted=False)
        _, last = self.rnn(packed)
        return self.head(last.squeeze(0))


def build():
    batch = AudioBatch(
        frames=torch.randn(3, 6, 5),
        label=torch.tensor([0, 2, 1]),
        lengths=torch.tensor([6, 3, 4]),
        rows=torch.tensor([7, 0, 4]),
        names=["bell", "rain", "door"],
    )
    model = Listener()
    return model, torch.optim.Adam(model.parameters()), batch, torch.zeros(10)


def step(model, optimizer, batch, losses_by_row):
    batch = batch.to("cuda")
    each = nn.functional.cross_entropy(model(batch), batch.label, reduction="none")
    optimizer.zero_grad()
    each.mean().backward()
    optimizer.step()
    losses_by_row[batch.rows] = each.detach().cpu()
    for name, length, loss in zip(batch.names, batch.lengths.tolist(), each.tolist()):
        print(f"{name:>8} {length:3d} {loss:.3f}")
