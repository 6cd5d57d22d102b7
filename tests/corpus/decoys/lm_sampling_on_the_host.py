"""Sampling is done on the host with a seeded generator, so that samples are the same on every machine."""

import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, vocab=15, width=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids, state=None):
        hidden, state = self.rnn(self.embed(ids), state)
        return self.head(hidden[:, -1]), state


def draw(logits, generator, temperature=0.7):
    probs = torch.softmax(logits.float().cpu() / temperature, dim=-1)
    keep = probs >= probs.topk(6, dim=-1).values[:, -1:]
    probs = probs * keep
    return torch.multinomial(probs, 1, generator=generator)


def build():
    return CharModel().eval(), torch.tensor([[2, 4, 8]])


@torch.no_grad()
def step(model, prompt):
    generator = torch.Generator(device="cpu").manual_seed(42)
    text = prompt.cpu()
    logits, state = model(prompt.to("cuda"))
    for _ in range(5):
        token = draw(logits, generator)
        text = torch.cat([text, token], dim=1)
        logits, state = model(token.to(logits.device), state)
    return text.numpy()
