"""The model of gpt_trainer.py."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 48
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32
    dropout: float = 0.1


def rotary(config):
    inv = 1.0 / (10000 ** (torch.arange(0, config.n_embd // config.n_head, 2).float() / 16))
    freqs = torch.outer(torch.arange(config.block_size).float(), inv)
    return torch.cat([freqs.cos(), freqs.sin()], dim=-1)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.qkv, self.out = nn.Linear(config.n_embd, 3 * config.n_embd), nn.Linear(config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.cache = {"rotary": rotary(config)}  # right: self.cache = {}; self.register_buffer("rotary", rotary(config), persistent=False)

    def rotated(self, x):
        table = self.cache["rotary"][: x.size(2)]  # right: table = self.rotary[: x.size(2)]
        cos, sin = table.chunk(2, dim=-1)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)  # fails: container

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (each.view(B, T, self.n_head, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).reshape(B, T, C)))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(config.n_embd),
                    "attention": Attention(config),
                    "mlp": nn.Sequential(
                        nn.LayerNorm(config.n_embd),
                        nn.Linear(config.n_embd, 4 * config.n_embd),
                        nn.SiLU(),
                        nn.Linear(4 * config.n_embd, config.n_embd),
                    ),
                }
            )
            for _ in range(config.n_layer)
        )
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer["attention"](layer["norm"](x))
            x = x + layer["mlp"](x)
        return self.head(x)
