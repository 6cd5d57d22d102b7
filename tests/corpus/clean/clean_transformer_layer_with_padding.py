"""torch's own encoder layer, with a key padding mask."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(12, width, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens), src_key_padding_mask=tokens == 0))


def build():
    model = Tagger().train()
    tokens = torch.tensor([[3, 4, 5, 0], [6, 7, 0, 0]])
    return model, torch.optim.AdamW(model.parameters()), tokens, torch.randint(0, 3, (2, 4))


def step(model, optimizer, tokens, tags):
    tokens, tags = tokens.to("cuda"), tags.to("cuda")
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
