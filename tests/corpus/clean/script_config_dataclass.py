"""The settings are a dataclass, and the device is one of them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class TrainConfig:
    block_size: int = 6
    vocab: int = 9
    width: int = 8
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


config = TrainConfig()


class Bigram(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.pos = nn.Embedding(cfg.block_size, cfg.width)
        self.lm_head = nn.Linear(cfg.width, cfg.vocab)

    def forward(self, idx, targets=None):
        positions = torch.arange(idx.size(1), device=self.cfg.device)
        logits = self.lm_head(self.tok(idx) + self.pos(positions))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, self.cfg.vocab), targets.reshape(-1))
        return logits, loss

    @torch.no_grad()
    def generate(self, max_new_tokens):
        idx = torch.zeros((1, 1), dtype=torch.long, device=self.cfg.device)
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.cfg.block_size :])
            idx = torch.cat((idx, torch.multinomial(logits[:, -1].softmax(dim=-1), num_samples=1)), dim=1)
        return idx[0].tolist()


def get_batch(data):
    ix = torch.randint(len(data) - config.block_size, (3,))
    x = torch.stack([data[i : i + config.block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + config.block_size] for i in ix])
    return x.to(config.device), y.to(config.device)


def build():
    model = Bigram(config).to(config.device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.arange(30) % config.vocab


def step(model, optimizer, data):
    _, loss = model(*get_batch(data))
    loss.backward()
    optimizer.step()
    return model.generate(4)
