"""The plain attributes are moved at the moment of use."""

import torch
from torch import nn

OPTIONS = {"moved_by": "to"}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)
        self.scales = [torch.ones(4), torch.full((4,), 2.0)]
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        x = self.conv(image - self.mean.to(image)).mean((2, 3))
        for scale in self.scales:
            x = x * scale.to(x.device)
        return x


def build():
    return Classifier(), torch.rand(2, 3, 5, 5)


def step(model, image):
    model(image.to("cuda")).sum().backward()
