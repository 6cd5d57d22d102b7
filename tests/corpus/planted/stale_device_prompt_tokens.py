"""Soft prompts are looked up by their numbers, made on the model's device."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Prompted(nn.Module):
    def __init__(self, prompts=3, width=6):
        super().__init__()
        self.prompt = nn.Embedding(prompts, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 12, dropout=0.0, batch_first=True)
        self.device = self.prompt.weight.device

    def forward(self, x):
        numbers = torch.arange(self.prompt.num_embeddings, device=self.device)
        prompt = self.prompt(numbers)  # fails: stale-device
        prompt = prompt.unsqueeze(0).expand(x.size(0), -1, -1)
        return self.block(torch.cat([prompt, x], dim=1))


def build():
    return Prompted(), torch.randn(2, 4, 6)


def step(model, x):
    model(x.to("cuda")).square().mean().backward()
