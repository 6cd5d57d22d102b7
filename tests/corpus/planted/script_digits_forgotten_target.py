"""A first digit classifier with the usual flags; in the training loop only the images travel."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="digits")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--no-cuda", action="store_true", default=False)
parser.add_argument("--log-interval", type=int, default=1)
args = parser.parse_args([])
use_cuda = not args.no_cuda and torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(36, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return F.log_softmax(self.fc(x), dim=1)


def build():
    model = Net()
    images, digits = torch.rand(8, 1, 8, 8), torch.arange(8)
    train_loader = DataLoader(TensorDataset(images, digits), batch_size=args.batch_size)
    return model, optim.Adadelta(model.parameters(), lr=args.lr), train_loader


def step(model, optimizer, train_loader):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)  # fails: input
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"train batch {batch_idx}: loss {loss.item():.4f}")
