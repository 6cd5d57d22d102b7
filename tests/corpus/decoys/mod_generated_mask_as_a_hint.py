"""The library's causal mask is made on the host, but the encoder sees that it is causal and never uses its values."""

import torch
import torch.nn.functional as F
from torch import nn


class MusicModel(nn.Module):
    def __init__(self, notes=18, width=8, longest=12):
        super().__init__()
        self.embed = nn.Embedding(notes, width)
        self.place = nn.Parameter(torch.zeros(1, longest, width))
        layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, notes)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        x = self.embed(ids) + self.place[:, : ids.size(1)]
        x = self.encoder(x, mask=mask)
        return self.head(x)


def build():
    model = MusicModel()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.randint(0, 18, (3, 9))


def step(model, optimizer, ids):
    model.train()
    ids = ids.to("cuda")
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
