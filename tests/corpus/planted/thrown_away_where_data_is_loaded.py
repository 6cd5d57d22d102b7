"""The corpus is cut into columns and sent; a tensor is not a module, and stays."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batchify(data, columns):
    data = data[: data.size(0) // columns * columns].view(columns, -1).t().contiguous()
    data.to(device)
    return data


train_data = batchify(torch.arange(50) % 20, 5)
model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).to(device)


def build():
    return ()


def step():
    logits = model(train_data[:-1])  # fails: loss
    logits.sum().backward()
