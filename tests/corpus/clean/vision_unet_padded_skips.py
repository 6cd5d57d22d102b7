"""A U-Net for images of any size: what came up is padded to the size of the skip; coordinates follow the image."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


class DoubleConv(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Conv2d(after, after, 3, padding=1),
            nn.GroupNorm(2, after),
        )


class Segmenter(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.first, self.second = DoubleConv(3, 4), DoubleConv(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Sequential(DoubleConv(8, 4), nn.Dropout2d(0.1), nn.Conv2d(4, classes, 1))

    def forward(self, image):
        height, width = image.shape[-2:]
        ys = torch.linspace(0, 1, height, device=image.device, dtype=image.dtype)
        xs = torch.linspace(0, 1, width, device=image.device, dtype=image.dtype)
        place = torch.stack(torch.meshgrid(ys, xs, indexing="ij")).expand(len(image), -1, -1, -1)
        skip = self.first(torch.cat([image, place], dim=1))
        up = self.up(self.second(F.avg_pool2d(skip, 2)))
        up = F.pad(up, (0, width - up.size(-1), 0, height - up.size(-2)))
        return self.last(torch.cat([up, skip], dim=1))


def dice(logits, mask):
    p, truth = logits.softmax(1), F.one_hot(mask, logits.size(1)).permute(0, 3, 1, 2)
    return 1 - (2 * (p * truth).sum() + 1) / (p.sum() + truth.sum() + 1)


def build():
    net = Segmenter().to(DEVICE)
    optimizer = torch.optim.RAdam(net.parameters(), lr=1e-3)
    return net, optimizer, {"image": torch.rand(2, 1, 7, 9), "mask": torch.randint(0, 3, (2, 7, 9))}


def step(net, optimizer, sample):
    image, mask = sample["image"].to(DEVICE), sample["mask"].to(DEVICE)
    logits = net(image)
    loss = F.cross_entropy(logits, mask) + dice(logits, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
