"""Truncated backpropagation: the hidden state is made like a weight and cut off between the chunks."""

import torch
from torch import nn


def cut(state):
    return state.detach() if torch.is_tensor(state) else tuple(map(cut, state))


class Typist(nn.Module):
    def __init__(self, recurrent, letters=9, layers=2):
        super().__init__()
        self.read = nn.Embedding(letters, recurrent.input_size)
        self.recurrent = recurrent
        self.write = nn.Linear(recurrent.hidden_size, letters)

    def begin(self, rows):
        rnn, weight = self.recurrent, self.write.weight
        h = weight.new_zeros(rnn.num_layers, rows, rnn.hidden_size)
        return (h, torch.zeros_like(h)) if isinstance(rnn, nn.LSTM) else h

    def forward(self, letters, state):
        out, state = self.recurrent(self.read(letters), state)
        return self.write(out), state


def build():
    models = [Typist(nn.LSTM(4, 5, num_layers=2)), Typist(nn.GRU(4, 5))]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in models]
    return models, optimizers, nn.CrossEntropyLoss(), torch.randint(0, 9, (10, 3))


def step(models, optimizers, criterion, text):
    text = text.to("cuda")
    for model, optimizer in zip(models, optimizers):
        state = model.begin(text.size(1))
        for letters, following in zip(text[:-1].split(3), text[1:].split(3)):
            optimizer.zero_grad()
            scores, state = model(letters, cut(state))
            criterion(scores.flatten(0, 1), following.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
