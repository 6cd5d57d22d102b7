"""The optimizer is made first and the model sent to the device later; this optimizer has its sums from the start."""

import argparse

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args([])


class BagOfWords(nn.Module):
    def __init__(self, words=20, classes=2):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, 6, mode="mean")
        self.fc = nn.Linear(6, classes)

    def forward(self, text, offsets):
        return self.fc(self.bag(text, offsets))


def collate(rows):
    labels = torch.tensor([label for label, _ in rows])
    lengths = [len(ids) for _, ids in rows]
    text = torch.cat([torch.tensor(ids) for _, ids in rows])
    offsets = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    return labels.to(args.device), text.to(args.device), offsets.to(args.device)


def build():
    model = BagOfWords()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    return model, optimizer, [(0, [1, 5, 7]), (1, [2, 2]), (1, [9, 3, 4, 11])]


def step(model, optimizer, rows):
    labels, text, offsets = collate(rows)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(text, offsets), labels)
    loss.backward()
    optimizer.step()  # fails: optimizer
    return loss.item()
