"""The features come straight out of numpy, in its usual precision, and beside them the number of the speaker."""

import numpy as np
import torch
from torch import nn


class SpeechModel(nn.Module):
    def __init__(self, speakers=4, features=6, hidden=5):
        super().__init__()
        self.speaker = nn.Embedding(speakers, hidden)
        self.gru = nn.GRU(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 3)

    def forward(self, features, speaker):
        start = self.speaker(speaker).unsqueeze(0)  # fails: input
        _, last = self.gru(features, start.contiguous())  # fails: error
        return self.head(last[-1])


def build():
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.standard_normal((3, 8, 6)))
    batch = {"features": features, "speaker": torch.tensor([0, 3, 1]), "label": torch.tensor([2, 0, 1])}
    model = SpeechModel()
    return model, torch.optim.Adam(model.parameters()), batch


def step(model, optimizer, batch):
    features, label = batch["features"].to("cuda"), batch["label"].to("cuda")
    loss = nn.functional.cross_entropy(model(features, batch["speaker"]), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
