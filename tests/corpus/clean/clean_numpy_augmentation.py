"""The batch is augmented in numpy before it is moved."""

import numpy as np
import torch
from torch import nn

OPTIONS = {"data": "real"}


def build():
    return nn.Conv2d(1, 2, 3), torch.randn(2, 1, 5, 5)


def step(model, image):
    flipped = np.ascontiguousarray(image.numpy()[..., ::-1])
    flipped += np.float32(0.1)
    out = model(torch.from_numpy(flipped).to("cuda"))
    weight = torch.as_tensor(np.ones((2, 1, 1), dtype=np.float32), device="cuda")
    (out * weight).mean().backward()
