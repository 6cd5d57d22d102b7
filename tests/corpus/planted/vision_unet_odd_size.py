"""A U-Net with coordinates as extra channels. Images were even until someone cropped them to 9 x 9."""

import torch
import torch.nn.functional as F
from torch import nn


def block(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


def coordinates(n, height, width):
    ys = torch.linspace(-1, 1, height).view(1, 1, height, 1).expand(n, 1, height, width)
    xs = torch.linspace(-1, 1, width).view(1, 1, 1, width).expand(n, 1, height, width)
    return torch.cat([ys, xs], dim=1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.down = block(3, 4), block(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.leave = nn.Sequential(block(8, 4), nn.Conv2d(4, 1, 1))

    def forward(self, image):
        n, _, height, width = image.shape
        place = coordinates(n, height, width)
        skip = self.enter(torch.cat([image, place], dim=1))  # fails: factory
        deep = self.down(F.max_pool2d(skip, 2))
        joined = torch.cat([self.up(deep), skip], dim=1)  # fails: error
        return self.leave(joined)


def build():
    net = UNet()
    return net, torch.optim.AdamW(net.parameters()), torch.rand(2, 1, 9, 9), (torch.rand(2, 1, 9, 9) > 0.5).float()


def step(net, optimizer, image, mask):
    image, mask = image.to("cuda"), mask.to("cuda")
    loss = F.binary_cross_entropy_with_logits(net(image), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
