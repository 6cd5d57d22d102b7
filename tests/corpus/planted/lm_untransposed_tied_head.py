"""The output head shares the weights of the embedding: multiply by them once more. The device is in the config."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


@dataclass
class GPTConfig:
    vocab_size: int = 20
    n_embd: int = 8
    block_size: int = 12
    device: str = "cpu"


class TinyGPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 32), nn.GELU(), nn.Linear(32, config.n_embd))

    def forward(self, idx):
        pos = torch.arange(idx.size(1), device=self.config.device).unsqueeze(0)
        places = self.wpe(pos)  # fails: stale-device
        x = self.wte(idx) + places
        x = x + self.mlp(x)
        return x @ self.wte.weight  # fails: error


def build():
    return TinyGPT(GPTConfig()), torch.randint(0, 20, (2, 7))


def step(model, idx):
    idx = idx.to("cuda")
    logits = model(idx[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten()).backward()
