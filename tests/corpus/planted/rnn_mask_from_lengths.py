"""Packing wants the lengths on the CPU, and the mean over time uses them once more."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class SentenceEncoder(nn.Module):
    def __init__(self, vocab=20, dim=4, hidden=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.LSTM(dim, hidden, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(2 * hidden, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        places = torch.arange(out.size(1), device=out.device)
        keep = places.unsqueeze(0) < lengths.unsqueeze(1)  # fails: input
        mean = (out * keep.unsqueeze(2)).sum(1) / keep.sum(1, keepdim=True)
        return self.classify(mean)


def build():
    model = SentenceEncoder()
    ids = torch.randint(1, 20, (3, 6))
    return model, torch.optim.Adam(model.parameters()), ids, torch.tensor([4, 6, 2]), torch.tensor([0, 1, 1])


def step(model, optimizer, ids, lengths, labels):
    optimizer.zero_grad()
    logits = model(ids.cuda(), lengths)
    loss = nn.functional.cross_entropy(logits, labels.cuda())
    loss.backward()
    optimizer.step()
    return loss.item()
