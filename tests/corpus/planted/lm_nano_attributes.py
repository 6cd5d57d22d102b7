"""A small GPT as in the lecture notes; the mask is only a constant, and positions are counted in forward."""

import math

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.tril = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)

    def forward(self, x):
        B, T, C = x.size()  # noqa: N806
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2)
        )
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))  # fails: attribute
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self, vocab=24, n_embd=8, block_size=10):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.attn = CausalSelfAttention(n_embd, 2, block_size)
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long)
        x = self.wte(idx) + self.wpe(pos)  # fails: factory
        logits = self.lm_head(self.ln_f(x + self.attn(x)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def build():
    torch.manual_seed(1337)
    return GPT(), torch.randint(0, 24, (2, 9))


def step(model, chunk):
    chunk = chunk.cuda()
    loss = model(chunk[:, :-1], chunk[:, 1:].contiguous())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
