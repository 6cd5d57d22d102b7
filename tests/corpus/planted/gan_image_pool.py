"""Old fakes are kept on the CPU, so that the pool takes no memory of the card."""

import torch
import torch.nn.functional as F
from torch import nn


class ImagePool:
    def __init__(self, size):
        self.size = size
        self.images = []

    def query(self, images):
        answer = []
        for image in images.detach():
            if len(self.images) < self.size:
                answer.append(image)
            else:
                answer.append(self.images.pop(0))
            self.images.append(image.cpu())
        return torch.stack(answer)  # fails: hard-coded


def build():
    painter = nn.Conv2d(1, 1, 3, padding=1)
    judge = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 1))
    optimizers = {"painter": torch.optim.Adam(painter.parameters()), "judge": torch.optim.Adam(judge.parameters())}
    return painter, judge, optimizers, ImagePool(3), torch.rand(4, 1, 5, 5), torch.rand(4, 1, 5, 5)


def step(painter, judge, optimizers, pool, photos, paintings):
    photos, paintings = photos.cuda(), paintings.cuda()
    fakes = painter(photos)
    score = judge(fakes)
    optimizers["painter"].zero_grad()
    F.mse_loss(score, torch.ones_like(score)).backward()
    optimizers["painter"].step()

    old = pool.query(fakes)
    good, bad = judge(paintings), judge(old)
    optimizers["judge"].zero_grad()
    (F.mse_loss(good, torch.ones_like(good)) + F.mse_loss(bad, torch.zeros_like(bad))).backward()
    optimizers["judge"].step()
