"""Reviews of different lengths: the ids travel, while the lengths stay behind because packing wants them there."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

use_cuda = torch.cuda.is_available()
device = torch.device("cuda") if use_cuda else torch.device("cpu")


class Reviews(nn.Module):
    def __init__(self, words=14):
        super().__init__()
        self.embedding = nn.Embedding(words, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(8, 1)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        states, kept = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        assert torch.equal(kept, lengths)
        return self.fc(states.amax(dim=1)).squeeze(1)


def build():
    model = Reviews()
    if use_cuda:
        model = model.cuda()
    reviews = [torch.tensor([3, 5, 2]), torch.tensor([7, 1]), torch.tensor([4, 9, 13, 6])]
    return model, torch.optim.Adam(model.parameters(), lr=0.01), reviews, torch.tensor([1.0, 0.0, 1.0])


def step(model, optimizer, reviews, liked):
    lengths = torch.tensor([len(r) for r in reviews], device="cpu")
    ids = pad_sequence(reviews, batch_first=True)
    if use_cuda:
        ids, liked = ids.cuda(), liked.cuda()
    logits = model(ids, lengths)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, liked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
