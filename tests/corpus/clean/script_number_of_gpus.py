"""The project template that asks how many GPUs there are, and chooses the device by the number."""

import argparse

import torch
from torch import nn

args = argparse.Namespace(no_cuda=False, wanted=1)
args.n_gpu = 0 if args.no_cuda else torch.cuda.device_count()


def prepare_device(wanted):
    n_gpu = torch.cuda.device_count()
    if wanted > 0 and n_gpu == 0:
        print("no GPU on this machine: training on the CPU")
        wanted = 0
    device = torch.device("cuda:0" if wanted > 0 else "cpu")
    return device, list(range(wanted))


device, device_ids = prepare_device(args.wanted)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(device)
if len(device_ids) > 1:
    model = nn.DataParallel(model, device_ids=device_ids)


class Trainer:
    def __init__(self, model):
        self.n_gpu = torch.cuda.device_count()
        self.device = torch.device("cuda" if self.n_gpu > 0 else "cpu")
        self.weight = torch.tensor([1.0, 2.0, 1.0]).to(self.device)
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, x, y):
        x, y = x.to(self.device), y.to(self.device)
        loss = nn.functional.cross_entropy(self.model(x), y, self.weight)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


trainer = Trainer(model)


def build():
    return torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])


def step(x, y):
    if args.n_gpu > 0:
        x = x.cuda()
    trainer.fit(x, y)
