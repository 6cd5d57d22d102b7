"""A data set that keeps its rows on the device, read row by row."""

import torch
from torch import nn
from torch.utils.data import Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Names(Dataset):
    def __init__(self):
        self.rows = [torch.randn(2, 3).to(device) for _ in range(4)]
        self.labels = torch.arange(4, device=device) % 2

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]


names = Names()
model = nn.Linear(3, 2).to(device)


def build():
    return ()


def step():
    for index in range(len(names)):
        row, label = names[index]
        nn.functional.cross_entropy(model(row).mean(0, keepdim=True), label[None]).backward()
