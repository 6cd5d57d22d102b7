"""A flat training script for whatever accelerator is there; the criterion has a tensor in it and was not sent along."""

import torch
from torch import nn

device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
print(f"Using {device} device")

class_counts = torch.tensor([50.0, 10.0, 5.0])
criterion = nn.CrossEntropyLoss(weight=class_counts.sum() / class_counts)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 3))

    def forward(self, x):
        return self.linear_relu_stack(self.flatten(x))


model = NeuralNetwork().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def train(dataloader):
    model.train()
    for inputs, y in dataloader:
        inputs, y = inputs.to(device), y.to(device)
        pred = model(inputs)
        loss = criterion(pred, y)  # fails: loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss: {loss.item():>7f}")


def build():
    images = torch.rand(8, 4, 4)
    return (torch.utils.data.DataLoader(list(zip(images, [0, 0, 1, 2, 0, 1, 0, 2])), batch_size=4),)


def step(dataloader):
    train(dataloader)
