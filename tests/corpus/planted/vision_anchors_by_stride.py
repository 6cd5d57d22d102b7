"""A detector with two levels: boxes near an object but not near enough are ignored in the loss."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


def grid(side, stride):
    at = (torch.arange(side) + 0.5) * stride
    ys, xs = torch.meshgrid(at, at, indexing="ij")
    return torch.stack([xs - stride, ys - stride, xs + stride, ys + stride], dim=-1).view(-1, 4)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.deeper = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Conv2d(8, 5, 1)
        self.anchors = {2: grid(4, 2), 4: grid(2, 4)}

    def forward(self, image):
        maps = {2: self.stem(image)}
        maps[4] = self.deeper(maps[2])
        boxes, scores = [], []
        for stride, features in maps.items():
            out = self.head(features).flatten(2).transpose(1, 2)
            boxes.append(out[..., :4] + self.anchors[stride])  # fails: container
            scores.append(out[..., 4])
        return torch.cat(boxes, dim=1), torch.cat(scores, dim=1)


def build():
    return Detector(), torch.rand(2, 3, 8, 8), [torch.tensor([0.0, 0.0, 4.0, 4.0]), torch.tensor([2.0, 2.0, 6.0, 7.0])]


def step(model, image, truth):
    boxes, scores = model(image.to("cuda"))
    loss = 0.0
    for box, score, wanted in zip(boxes, scores, truth, strict=True):
        gap = (box.detach() - wanted).abs().mean(dim=-1)  # fails: input
        hit, near = gap < 1.0, gap < 3.0
        ignored = near - hit  # fails: error
        each = F.binary_cross_entropy_with_logits(score, hit.float(), reduction="none")
        loss = loss + (each * ~ignored).mean()
    loss.backward()
