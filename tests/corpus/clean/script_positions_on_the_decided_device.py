"""The table of positions is a plain attribute, but it was put where the script trains when it was made."""

import math

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=20):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.pe = pe.to(DEVICE)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Tagger(nn.Module):
    def __init__(self, words=15, tags=4, d_model=8):
        super().__init__()
        self.embedding = nn.Embedding(words, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead=2, dim_feedforward=16, batch_first=True)
        self.out = nn.Linear(d_model, tags)

    def forward(self, ids):
        return self.out(self.layer(self.pos_encoder(self.embedding(ids))))


def build():
    model = Tagger()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randint(0, 15, (2, 6)), torch.randint(0, 4, (2, 6))


def step(model, optimizer, ids, tags):
    optimizer.zero_grad()
    logits = model(ids.to(DEVICE))
    nn.functional.cross_entropy(logits.flatten(0, 1), tags.to(DEVICE).flatten()).backward()
    optimizer.step()
