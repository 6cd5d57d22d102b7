"""Super resolution: the large targets are kept in host memory on purpose, but the loss wants them beside the output."""

import torch
from torch import nn, optim

use_cuda = torch.cuda.is_available()
use_mps = not use_cuda and torch.backends.mps.is_available()
if use_cuda:
    device = torch.device("cuda")
elif use_mps:
    device = torch.device("mps")
else:
    device = torch.device("cpu")
target_device = torch.device("cpu")  # four times the size of the inputs


class SuperResolution(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(self.relu(self.conv1(x))))


def build():
    model = SuperResolution(upscale_factor=2)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    loader = [(torch.rand(2, 1, 6, 6), torch.rand(2, 1, 12, 12)) for _ in range(2)]
    return model, optimizer, nn.MSELoss(), loader


def step(model, optimizer, criterion, loader):
    epoch_loss = 0
    for batch in loader:
        low, high = batch[0].to(device), batch[1].to(target_device)
        optimizer.zero_grad()
        loss = criterion(model(low), high)  # fails: stale-device
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
    return epoch_loss / len(loader)
