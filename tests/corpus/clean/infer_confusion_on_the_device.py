"""The confusion matrix is counted where the predictions are, and read once at the end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 3


def add(confusion, truth, guess):
    pairs = truth * CLASSES + guess
    confusion += torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)


@torch.no_grad()
def evaluate(net, loader):
    device = next(net.parameters()).device
    confusion, missed = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=device), None
    for image, truth in loader:
        image, truth = image.to(device), truth.to(device)
        logits = net(image)
        add(confusion, truth, logits.argmax(dim=1))
        if missed is None:
            missed = logits.new_zeros(CLASSES)
        one = torch.ones_like(truth, dtype=logits.dtype)
        missed.index_put_((truth,), one - logits.softmax(1).gather(1, truth[:, None])[:, 0], accumulate=True)
    both = confusion.diag().float()
    iou = both / (confusion.sum(0) + confusion.sum(1) - both).clamp_min(1)
    return iou.mean(), missed / confusion.sum(1).clamp_min(1)


def build():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES))
    data = TensorDataset(torch.rand(7, 1, 5, 5), torch.arange(7) % CLASSES)
    return net.eval(), DataLoader(data, batch_size=3)


def step(net, loader):
    iou, missed = evaluate(net, loader)
    print(f"mIoU {iou.item():.3f}", [round(m, 2) for m in missed.tolist()])
