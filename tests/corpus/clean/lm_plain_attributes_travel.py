"""Slopes, a decay mask and gates are plain attributes and lists; everything attached is moved with the model."""

import torch
import torch.nn.functional as F
from torch import nn


class LinearBiasLM(nn.Module):
    def __init__(self, vocab=25, width=8, heads=2, longest=12):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocab, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        far = torch.arange(longest)[None, :] - torch.arange(longest)[:, None]
        self.future = far > 0
        self.slopes = [far.clamp(max=0) * 2.0 ** -(h + 1) for h in range(heads)]
        self.gates = {"in": torch.full((width,), 0.9), "out": torch.full((width,), 0.5)}

    def forward(self, ids):
        b, n = ids.shape
        x = self.embed(ids) * self.gates["in"]
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        bias = torch.stack([slope[:n, :n] for slope in self.slopes])
        scores = (q @ k.transpose(-1, -2) + bias).masked_fill(self.future[:n, :n], -1e9)
        x = x + self.gates["out"] * (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return F.linear(self.norm(x), self.embed.weight)


def build():
    model = LinearBiasLM()
    return model, torch.optim.NAdam(model.parameters(), lr=1e-3), torch.randint(0, 25, (3, 10))


def step(model, optimizer, ids):
    ids = ids.cuda()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
