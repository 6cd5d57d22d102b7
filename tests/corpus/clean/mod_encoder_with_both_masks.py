"""A sequence model with the library's encoder: both masks are made on the device of the tokens."""

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0


class SequenceModel(nn.Module):
    def __init__(self, vocab=22, width=8, longest=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=PAD)
        self.register_buffer("place", torch.randn(longest, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.pool = nn.MultiheadAttention(width, 2, batch_first=True)
        self.ask = nn.Parameter(torch.randn(1, 1, width))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        n = ids.size(1)
        future = torch.ones(n, n, dtype=torch.bool, device=ids.device).triu(1)
        padding = ids.eq(PAD)
        x = self.embed(ids) + self.place[:n]
        x = self.encoder(x, mask=future, src_key_padding_mask=padding)
        summary, _ = self.pool(self.ask.expand(len(ids), -1, -1), x, x, key_padding_mask=padding)
        return self.head(x + summary)


def build():
    model = SequenceModel()
    ids = torch.tensor([[5, 9, 2, 7, 0, 0], [3, 3, 8, 1, 4, 6]])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), ids


def step(model, optimizer, ids):
    ids = ids.to("cuda")
    logits = model(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    print(loss.item())
