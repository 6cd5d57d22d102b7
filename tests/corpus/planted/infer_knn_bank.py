"""Nearest neighbours judge the features; the bank of the training set is kept on the host since it is large."""

import torch
import torch.nn.functional as F
from torch import nn


def embed(net, images):
    return F.normalize(net(images.to("cuda")), dim=1)


def build():
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    train = [(torch.rand(4, 3, 6, 6), torch.randint(0, 3, (4,))) for _ in range(2)]
    valid = (torch.rand(3, 3, 6, 6), torch.randint(0, 3, (3,)))
    return net.eval(), train, valid


def step(net, train, valid):
    with torch.inference_mode():
        bank = torch.cat([embed(net, images).cpu() for images, _ in train])
        known = torch.cat([labels for _, labels in train])
        queries = embed(net, valid[0])
        similarity = queries @ bank.T  # fails: hard-coded
        near = similarity.topk(3, dim=1).indices
        votes = known[near]  # fails: input
        guess = F.one_hot(votes, 3).sum(dim=1).argmax(dim=1)
        accuracy = (guess.cpu() == valid[1]).float().mean()
    print(f"k-NN accuracy {accuracy.item():.3f}")
