"""The tensor type was fixed at the top of the script while there was no GPU, and it stayed so."""

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

Tensor = torch.FloatTensor
NOISE = 5


def build():
    forger = nn.Sequential(nn.Linear(NOISE, 12), nn.LeakyReLU(0.1), nn.Linear(12, 16), nn.Tanh())
    expert = nn.Sequential(nn.Linear(16, 12), nn.LeakyReLU(0.1), nn.Linear(12, 1), nn.Sigmoid())
    forger_adam = torch.optim.Adam(forger.parameters(), lr=3e-4)
    expert_adam = torch.optim.Adam(expert.parameters(), lr=1e-4)
    return forger, expert, nn.BCELoss(), forger_adam, expert_adam, torch.rand(6, 1, 4, 4)


def step(forger, expert, bce, forger_adam, expert_adam, coins):
    n = len(coins)
    genuine = Variable(Tensor(n, 1).fill_(0.9))
    forged = Variable(Tensor(n, 1).fill_(0.0))
    coins = Variable(coins.cuda()).flatten(1)

    noise = Variable(Tensor(np.random.uniform(-1, 1, size=(n, NOISE))))
    copies = forger(noise)  # fails: factory
    forger_loss = bce(expert(copies), genuine)  # fails: factory
    forger_adam.zero_grad()
    forger_loss.backward()
    forger_adam.step()

    expert_loss = bce(expert(coins), genuine)
    expert_loss = expert_loss + bce(expert(copies.detach()), forged)  # fails: factory
    expert_adam.zero_grad()
    expert_loss.backward()
    expert_adam.step()
    print(f"forger {forger_loss.item():.3f}, expert {expert_loss.item():.3f}")
