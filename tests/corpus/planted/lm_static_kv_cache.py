"""Room for keys and values is taken once in the constructor, so that decoding allocates nothing."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Attention(nn.Module):
    def __init__(self, width, longest):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.k_cache = torch.zeros(1, longest, width)
        self.v_cache = torch.zeros(1, longest, width)

    def forward(self, x, pos):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.k_cache[:, pos : pos + 1] = k
        self.v_cache[:, pos : pos + 1] = v
        scores = q @ self.k_cache[:, : pos + 1].transpose(1, 2)  # fails: cache
        return scores.softmax(-1) @ self.v_cache[:, : pos + 1]  # fails: cache


class Decoder(nn.Module):
    def __init__(self, vocab=20, width=8, longest=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.attention = Attention(width, longest)
        self.out = nn.Linear(width, vocab)

    def forward(self, token, pos):
        x = self.embed(token)
        return self.out(x + self.attention(x, pos))


def build():
    return Decoder().eval(), torch.tensor([[3]])


@torch.no_grad()
def step(model, first):
    token = first.to("cuda")
    said = [token]
    for pos in range(4):
        token = model(token, pos).argmax(-1)
        said.append(token)
    return torch.cat(said, dim=1)
