"""An attention decoder is fed its own words or the right ones, by the throw of a coin."""

import random

import torch
import torch.nn.functional as F
from torch import nn

SOS = 1


class AttentionDecoder(nn.Module):
    def __init__(self, vocab=9, width=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cell = nn.GRUCell(2 * width, width)
        self.out = nn.Linear(width, vocab)

    def attend(self, hidden, memory):
        weights = torch.bmm(memory, hidden.unsqueeze(2)).softmax(dim=1)
        return (weights * memory).sum(dim=1)

    def forward(self, memory, hidden, target, teacher_forcing_ratio=0.5):
        token = torch.full((memory.size(0),), SOS, dtype=torch.long)
        loss = 0.0
        for t in range(target.size(1)):
            word = self.embed(token)  # fails: factory
            hidden = self.cell(torch.cat([word, self.attend(hidden, memory)], dim=1), hidden)
            logits = self.out(hidden)
            loss = loss + F.cross_entropy(logits, target[:, t])  # fails: input
            teach = random.random() < teacher_forcing_ratio
            token = target[:, t] if teach else logits.argmax(dim=1)
        return loss / target.size(1)


def build():
    encoder = nn.GRU(5, 6, batch_first=True)
    decoder = AttentionDecoder()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    return encoder, decoder, optimizer, torch.randn(3, 4, 5), torch.randint(2, 9, (3, 5))


def step(encoder, decoder, optimizer, source, target):
    memory, last = encoder(source.to("cuda"))
    loss = decoder(memory, last[-1], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
