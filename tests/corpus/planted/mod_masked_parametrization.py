"""A pruned click model: the zeros are held in place by a parametrization."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

OPTIONS = {"moved_by": "to"}


class Pruned(nn.Module):
    def __init__(self, weight, share=0.5):
        super().__init__()
        edge = weight.detach().abs().flatten().quantile(share)
        self.keep = (weight.detach().abs() > edge).float()

    def forward(self, weight):
        return weight * self.keep  # fails: attribute


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    parametrize.register_parametrization(model[0], "weight", Pruned(model[0].weight))
    batch = {"features": torch.randn(5, 6), "clicked": torch.tensor([0, 1, 1, 0, 1])}
    return model, torch.optim.SGD(model.parameters(), lr=0.01), batch


def step(model, optimizer, batch):
    features, clicked = batch["features"].to("cuda"), batch["clicked"].to("cuda")
    optimizer.zero_grad()
    score = model(features).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(score, clicked)  # fails: error
    loss.backward()
    optimizer.step()
