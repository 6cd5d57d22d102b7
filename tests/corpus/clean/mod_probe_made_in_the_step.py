"""A linear probe is made fresh for every evaluation, and sent to where the features are."""

import torch
from torch import nn


def fit_probe(features, labels, classes, epochs=3):
    probe = nn.Sequential(nn.LayerNorm(features.size(1)), nn.Linear(features.size(1), classes)).to(features.device)
    share = torch.bincount(labels, minlength=classes).float() / len(labels)
    criterion = nn.CrossEntropyLoss(weight=1 / share.clamp(min=0.05))
    optimizer = torch.optim.LBFGS(probe.parameters(), lr=0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = criterion(probe(features), labels)
        loss.backward()
        return loss

    for _ in range(epochs):
        optimizer.step(closure)
    return probe


def build():
    backbone = nn.Sequential(nn.Linear(10, 16), nn.Mish(), nn.Linear(16, 8))
    return backbone, torch.randn(9, 10), torch.arange(9) % 3


def step(backbone, x, y):
    backbone.eval()
    with torch.no_grad():
        features = backbone(x.to("cuda"))
    y = y.to(features.device)
    probe = fit_probe(features, y, classes=3)
    with torch.no_grad():
        accuracy = (probe(features).argmax(-1) == y).float().mean()
    print(f"probe {accuracy:.2f}")
