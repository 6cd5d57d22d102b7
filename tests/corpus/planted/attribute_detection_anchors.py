"""Anchor boxes are a fixed grid; the head adds its offsets to them."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class BoxHead(nn.Module):
    def __init__(self, channels=4, side=3):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 1)
        ys, xs = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        self.anchors = torch.stack([xs, ys, xs + 1, ys + 1], dim=-1).reshape(-1, 4).float()

    def forward(self, features):
        offsets = self.conv(features).flatten(2).transpose(1, 2)
        return torch.add(offsets, self.anchors)  # fails: attribute


def build():
    model = BoxHead()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, {"features": torch.randn(2, 4, 3, 3), "boxes": torch.rand(2, 9, 4)}


def step(model, optimizer, batch):
    device = torch.device("cuda")
    boxes = model(batch["features"].to(device))
    loss = F.smooth_l1_loss(boxes, batch["boxes"].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
