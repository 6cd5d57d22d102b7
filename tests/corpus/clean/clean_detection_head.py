"""Anchors are made from the feature map, on its device; boxes come in a list."""

import torch
import torch.nn.functional as F
from torch import nn


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, features):
        side = features.size(-1)
        line = torch.arange(side, device=features.device, dtype=features.dtype)
        ys, xs = torch.meshgrid(line, line, indexing="ij")
        anchors = torch.stack([xs, ys, xs + 1, ys + 1], dim=-1).reshape(-1, 4)
        return self.conv(features).flatten(2).transpose(1, 2) + anchors


def build():
    return BoxHead(), torch.randn(2, 4, 3, 3), [{"boxes": torch.rand(9, 4)}, {"boxes": torch.rand(9, 4)}]


def step(model, features, targets):
    targets = [{k: v.to("cuda") for k, v in target.items()} for target in targets]
    boxes = model(features.to("cuda"))
    loss = sum(F.smooth_l1_loss(got, target["boxes"]) for got, target in zip(boxes, targets, strict=True))
    loss.backward()
