"""Everything in the batch goes to the GPU, the lengths too."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self, words=20, width=6, tags=3):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(words, width, padding_idx=0), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, tags)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)  # fails: host
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.size(1))
        return self.head(states)


def build():
    model = Tagger()
    batch = {"ids": torch.randint(1, 20, (3, 5)), "lengths": torch.tensor([3, 5, 2]), "tags": torch.randint(3, (3, 5))}
    return model, torch.optim.Adam(model.parameters()), batch


def step(model, optimizer, batch):
    batch = {name: value.to("cuda") for name, value in batch.items()}
    scores = model(batch["ids"], batch["lengths"])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["tags"].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
