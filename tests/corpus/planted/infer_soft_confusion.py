"""A confusion matrix that counts probabilities instead of decisions, kept as integers as always."""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 4


@torch.no_grad()
def evaluate(net, loader, device):
    confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.int64, device=device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        probability = net(x).softmax(dim=1)
        truth = F.one_hot(y, CLASSES).float()
        confusion += truth.T @ probability  # fails: error
    per_class = confusion.diagonal() / confusion.sum(dim=1).clamp(min=1)
    return per_class.mean()


def build():
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES))
    loader = [(torch.rand(3, 1, 3, 3), torch.tensor([0, 1, 3])), (torch.rand(2, 1, 3, 3), torch.tensor([2, 2]))]
    return net, loader


def step(net, loader):
    net.eval()
    score = evaluate(net, loader, next(net.parameters()).device)
    print("balanced accuracy", score.item())
    net.train()
