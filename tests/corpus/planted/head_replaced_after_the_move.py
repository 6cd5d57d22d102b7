"""Fine-tuning: the new head came after the move, "the model is on the GPU already"."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x).relu())  # fails: loss


model = Net().to(DEVICE)
for parameter in model.parameters():
    parameter.requires_grad = False
model.fc = nn.Linear(8, 3)


def build():
    return (torch.randn(4, 6),)


def step(images):
    model(images.to(DEVICE)).sum().backward()
