"""Digits with all the flags that such scripts have, trained and tested once."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--no-mps", action="store_true")
args = parser.parse_args([])
use_cuda = not args.no_cuda and torch.cuda.is_available()
use_mps = not args.no_mps and torch.backends.mps.is_available()
if use_cuda:
    device = torch.device("cuda")
elif use_mps:
    device = torch.device("mps")
else:
    device = torch.device("cpu")


def train(model, train_loader, optimizer):
    model.train()
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def test(model, test_loader):
    model.eval()
    test_loss = correct = 0
    for data, target in test_loader:
        data, target = data.to(device), target.to(device)
        output = model(data)
        test_loss += F.nll_loss(output, target, reduction="sum").item()
        correct += output.argmax(dim=1, keepdim=True).eq(target.view_as(output[:, :1])).sum().item()
    return test_loss / len(test_loader.dataset), correct


def build():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10), nn.LogSoftmax(dim=1)).to(
        device
    )
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(torch.rand(8, 1, 6, 6), torch.arange(8)), batch_size=args.batch_size)
    return model, optimizer, StepLR(optimizer, step_size=1, gamma=0.7), loader


def step(model, optimizer, scheduler, loader):
    train(model, loader, optimizer)
    print(test(model, loader))
    scheduler.step()
