"""Nucleus sampling, one word at a time, until the end is written or the line is full."""

import torch
import torch.nn.functional as F
from torch import nn


class CharLM(nn.Module):
    def __init__(self, n=20, d=12):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(n, d), nn.LSTM(d, d, batch_first=True), nn.Linear(d, n)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.emb(ids), state)
        return self.out(h[:, -1]), state


def nucleus(logits, p):
    ordered, index = torch.sort(logits, descending=True)
    cumulative = F.softmax(ordered, dim=-1).cumsum(dim=-1)
    drop = cumulative > p
    drop[..., 1:] = drop[..., :-1].clone()
    drop[..., 0] = False
    return logits.masked_fill(drop.scatter(-1, index, drop), -float("inf"))


def build():
    return CharLM().eval(), [3, 7, 1]


def step(model, prompt, eos=0, limit=12, temperature=0.8):
    device = next(model.parameters()).device
    ids, state, out = torch.tensor([prompt]).to(device), None, list(prompt)
    with torch.inference_mode():
        while len(out) < limit:
            logits, state = model(ids, state)
            probs = nucleus(logits / temperature, 0.9).softmax(-1)
            ids = torch.multinomial(probs, num_samples=1)
            word = ids.item()
            if word == eos:
                break
            out.append(word)
    return out
