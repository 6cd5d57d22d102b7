"""partial binds the class weights once, when the model is made."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Tagger(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, classes)
        self.objective = partial(F.cross_entropy, weight=torch.tensor([0.2, 1.0, 3.0]), label_smoothing=0.1)

    def forward(self, x, tags):
        hidden, _ = self.rnn(x)
        logits = self.head(hidden).flatten(0, 1)
        return self.objective(logits, tags.flatten())  # fails: closure


def build():
    return Tagger(), (torch.randn(2, 5, 4), torch.randint(0, 3, (2, 5)))


def step(model, batch):
    x, tags = batch
    model(x.to("cuda"), tags.to("cuda")).backward()
