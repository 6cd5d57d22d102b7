"""To save memory the loader's images are halved before the trip; the network that waits for them is full precision."""

import torch
from torch import nn

if torch.cuda.is_available():
    DEVICE, PIN = "cuda", True
else:
    DEVICE, PIN = "cpu", False


class Patches(nn.Module):
    def __init__(self, classes=5, device=DEVICE):
        super().__init__()
        self.embed = nn.Conv2d(3, 6, kernel_size=2, stride=2, device=device)
        self.token = nn.Parameter(torch.zeros(1, 1, 6, device=device))
        self.head = nn.Linear(6, classes, device=device)

    def forward(self, images):
        patches = self.embed(images)  # fails: error
        patches = patches.flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(patches), -1, -1), patches], dim=1)
        return self.head(x.mean(dim=1))


def build():
    model = Patches()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4), torch.rand(2, 3, 4, 4), torch.tensor([4, 1])


def step(model, optimizer, images, labels):
    images = images.half().to(DEVICE, non_blocking=PIN)
    labels = labels.to(DEVICE, non_blocking=PIN)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
