"""A leftover .to("cpu") from the days before the GPU."""

import torch
import torch.nn.functional as F
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x):
        return self.up(torch.relu(self.down(x)))


def build():
    return Segmenter(), {"image": torch.randn(2, 1, 4, 4), "mask": torch.rand(2, 4, 4)}


def step(model, batch):
    batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
    logits = model(batch["image"])
    target = (batch["mask"] > 0.5).long().to("cpu")
    loss = F.cross_entropy(logits, target)  # fails: hard-coded
    loss.backward()
