"""The diffusion object knows its device and samples time steps there; its schedule stays where it was made."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Diffusion:
    def __init__(self, steps=10, device="cuda"):
        self.steps, self.device = steps, device
        self.kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), dim=0)

    def times(self, count):
        return torch.randint(1, self.steps, (count,)).to(self.device)

    def noised(self, images, t):
        kept = self.kept[t][:, None, None, None]  # fails: loss
        noise = torch.randn_like(images)
        return kept.sqrt() * images + (1 - kept).sqrt() * noise, noise


model = nn.Conv2d(1, 1, 3, padding=1).to(device)
diffusion = Diffusion(device=device)
optimizer = torch.optim.AdamW(model.parameters())


def build():
    return torch.randn(2, 1, 6, 6)


def step(images):
    images = images.to(device)
    noised, noise = diffusion.noised(images, diffusion.times(len(images)))
    loss = nn.functional.mse_loss(model(noised), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
