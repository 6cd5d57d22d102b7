"""A convolutional GAN whose device is chosen at the top of the file, and whose noise for pictures is made there too."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
CHANNELS = 4
PREVIEW = torch.randn(2, CHANNELS, 1, 1, device=DEVICE)


def start_small(layer):
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(layer.weight, std=0.05)


def build():
    up = nn.Sequential(nn.ConvTranspose2d(CHANNELS, 6, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.ConvTranspose2d(6, 1, 2, 2))
    down = nn.Sequential(nn.Conv2d(1, 6, 2, 2), nn.LeakyReLU(0.1), nn.Conv2d(6, 1, 2), nn.Flatten(0))
    nets = {"up": up.apply(start_small).to(DEVICE), "down": down.apply(start_small).to(DEVICE)}
    optimizers = {name: torch.optim.Adam(net.parameters(), lr=1e-3) for name, net in nets.items()}
    return nets["up"], nets["down"], optimizers, [torch.rand(5, 1, 4, 4), torch.zeros(5)]


def step(up, down, optimizers, batch):
    images, _ = batch
    images = images.to(DEVICE)
    truth = torch.full((len(images),), 1.0, device=DEVICE)
    optimizers["down"].zero_grad()
    on_real = F.binary_cross_entropy_with_logits(down(images), truth)
    on_real.backward()
    made = up(torch.randn(len(images), CHANNELS, 1, 1, device=DEVICE)).sigmoid()
    truth.fill_(0.0)
    on_made = F.binary_cross_entropy_with_logits(down(made.detach()), truth)
    on_made.backward()
    optimizers["down"].step()

    optimizers["up"].zero_grad()
    F.binary_cross_entropy_with_logits(down(made), torch.ones_like(truth)).backward()
    optimizers["up"].step()
    print(f"real {on_real.item():.4f}, made {on_made.item():.4f}")
    with torch.no_grad():
        return up.eval()(PREVIEW).cpu()
