"""All variables are those of main; the step is a function in it."""

import torch
from torch import nn


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(3, 4).to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 0.5], device=device))
    optimizer = torch.optim.AdamW(model.parameters())

    def train(batch, labels):
        loss = criterion(model(batch.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


train = main()


def build():
    return torch.randn(5, 3), torch.arange(5) % 4


def step(batch, labels):
    train(batch, labels)
