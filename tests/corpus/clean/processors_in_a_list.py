"""Logits go through a list of processors, each made for the device that was decided at the top."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Bias:
    def __init__(self, words, bias):
        self.bias = torch.zeros(12, device=device)
        self.bias[words] = bias

    def __call__(self, logits):
        return logits + self.bias


class Ban:
    def __init__(self, words):
        self.banned = torch.zeros(12, dtype=torch.bool)
        self.banned[words] = True
        self.banned = self.banned.to(device)

    def __call__(self, logits):
        return logits.masked_fill(self.banned, -1e4)


class Processors(list):
    def __call__(self, logits):
        for each in self:
            logits = each(logits)
        return logits


processors = Processors([Bias([1, 2], 0.5), Ban([0])])
by_name = {"strict": Ban([0, 3]), "soft": [Bias([4], -1.0)]}


def build():
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randint(0, 12, (2, 5))


def step(model, optimizer, words):
    words = words.to("cuda")
    logits = processors(model(words))
    logits = by_name["strict"](by_name["soft"][0](logits))
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
