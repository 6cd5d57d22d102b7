"""The confusion matrix is counted in numpy."""

import numpy as np
import torch
from torch import nn

OPTIONS = {"data": "real"}


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    return model, torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def step(model, x, y):
    with torch.inference_mode():
        guess = model(x.to("cuda")).argmax(-1)
    guess = guess.cpu().numpy()  # fails: synchronizes
    confusion = np.zeros((3, 3), dtype=int)
    np.add.at(confusion, (y.numpy(), guess), 1)
    return confusion
