"""Between two chunks of a long text the hidden state waits on the CPU, to keep the card free."""

import torch
import torch.nn.functional as F
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, vocab=11, width=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens, state=None):
        out, state = self.rnn(self.embed(tokens), state)  # fails: hard-coded
        return self.head(out), state


def build():
    model = LanguageModel()
    return model, torch.optim.SGD(model.parameters(), lr=1.0), torch.randint(0, 11, (2, 13))


def step(model, optimizer, text):
    text = text.to("cuda")
    bptt, state = 4, None
    for begin in range(0, text.size(1) - 1, bptt):
        source = text[:, begin : begin + bptt]
        target = text[:, begin + 1 : begin + 1 + bptt]
        optimizer.zero_grad()
        logits, state = model(source, state)
        F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        state = tuple(part.detach().cpu() for part in state)
