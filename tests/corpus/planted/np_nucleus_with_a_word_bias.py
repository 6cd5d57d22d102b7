"""Nucleus sampling; a processor made at construction pushes some words down."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


def discourage(words, vocabulary, amount=2.0):
    bias = torch.zeros(vocabulary)
    bias[words] = -amount
    return lambda logits: logits + bias  # fails: closure


class Bigram(nn.Module):
    def __init__(self, vocabulary=16):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
        self.process = discourage([2, 3, 5], vocabulary)

    def forward(self, last):
        return self.process(self.table(last))


def build():
    torch.manual_seed(1)
    return (Bigram(),)


@torch.no_grad()
def step(model, limit=8, top_p=0.9, eos=0):
    word, text = 1, [1]
    while word != eos and len(text) < limit:
        last = torch.tensor([word], device="cuda")
        p, order = model(last)[0].softmax(-1).sort(descending=True)
        keep = int((p.cumsum(0) < top_p).sum().item()) + 1
        pick = torch.multinomial(p[:keep], 1)
        word = order[pick].item()
        text.append(word)
    return text
