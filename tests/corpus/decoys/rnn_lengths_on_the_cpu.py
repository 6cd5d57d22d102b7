"""The whole batch goes over in one loop; packing then asks for the lengths on the CPU, as it always does."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Reader(nn.Module):
    def __init__(self, features=4, hidden=6, tags=3):
        super().__init__()
        self.rnn = nn.LSTM(features, hidden, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.to("cpu"), batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        out, cpu_lengths = pad_packed_sequence(out, batch_first=True)
        longest = int(cpu_lengths.max())
        keep = torch.arange(longest, device=x.device) < lengths[:, None]
        return self.head(out), keep


def build():
    model = Reader()
    batch = {"x": torch.randn(3, 7, 4), "lengths": torch.tensor([5, 7, 2]), "tags": torch.randint(0, 3, (3, 7))}
    return model, torch.optim.Adam(model.parameters()), batch


def step(model, optimizer, batch):
    for key in batch:
        batch[key] = batch[key].to("cuda")
    logits, keep = model(batch["x"], batch["lengths"])
    loss = nn.functional.cross_entropy(logits[keep], batch["tags"][keep])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
