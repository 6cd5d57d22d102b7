"""From one sequence to another: a bidirectional encoder, additive attention and sometimes the right word."""

import random

import torch
from torch import nn

PAD, SOS = 0, 1


class Encoder(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(2 * width, width)

    def forward(self, source):
        memory, last = self.rnn(self.embed(source))
        return memory, torch.tanh(self.bridge(torch.cat([last[-2], last[-1]], dim=1)))


class Decoder(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=PAD)
        self.query, self.key = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.energy = nn.Linear(width, 1, bias=False)
        self.cell = nn.GRUCell(3 * width, width)
        self.out = nn.Linear(width, vocab)

    def forward(self, token, hidden, memory, blocked):
        energy = self.energy(torch.tanh(self.query(hidden).unsqueeze(1) + self.key(memory))).squeeze(2)
        attention = energy.masked_fill(blocked, float("-inf")).softmax(dim=1)
        context = torch.bmm(attention.unsqueeze(1), memory).squeeze(1)
        hidden = self.cell(torch.cat([self.embed(token), context], dim=1), hidden)
        return self.out(hidden), hidden


def build():
    source = torch.tensor([[4, 5, 6, 2], [7, 8, 2, 0]])
    target = torch.tensor([[3, 9, 2], [5, 2, 0]])
    encoder, decoder = Encoder(10, 4), Decoder(10, 4)
    optimizer = torch.optim.Adam(list(encoder.parameters()) + list(decoder.parameters()))
    return encoder, decoder, optimizer, nn.CrossEntropyLoss(ignore_index=PAD), (source, target)


def step(encoder, decoder, optimizer, criterion, pair):
    source, target = [t.to("cuda") for t in pair]
    memory, hidden = encoder(source)
    token = torch.full_like(target[:, 0], SOS)
    scores = torch.zeros(*target.shape, 10, device=source.device)
    for t in range(target.size(1)):
        scores[:, t], hidden = decoder(token, hidden, memory, source == PAD)
        token = target[:, t] if random.random() < 0.5 else scores[:, t].detach().argmax(1)
    loss = criterion(scores.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
