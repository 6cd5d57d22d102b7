"""The perceptual loss compares features of a frozen network kept in this module."""

import torch
import torch.nn.functional as F
from torch import nn

FEATURES = nn.Conv2d(1, 4, 3, padding=1).requires_grad_(False).eval()


def perceptual(a, b):
    both = torch.cat([a, b])
    left, right = FEATURES(both).chunk(2)  # fails: loss
    return F.l1_loss(left, right)


def build():
    model = nn.Conv2d(1, 1, 3, padding=1)
    return model, torch.optim.Adam(model.parameters()), torch.randn(2, 1, 5, 5)


def step(model, optimizer, image):
    image = image.to("cuda")
    restored = model(image + 0.1 * torch.randn_like(image))
    loss = F.mse_loss(restored, image) + perceptual(restored, image)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
