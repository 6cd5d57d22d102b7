"""The old idiom: the type of all new tensors is decided once, when the script is loaded."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

use_cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if use_cuda else torch.FloatTensor
LongTensor = torch.cuda.LongTensor if use_cuda else torch.LongTensor
KINDS, NOISE = 3, 4


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(KINDS, NOISE)
        self.net = nn.Sequential(nn.Linear(2 * NOISE, 10), nn.ELU(), nn.Linear(10, 9))

    def forward(self, z, kind):
        return torch.sigmoid(self.net(torch.cat([z, self.kind(kind)], dim=1)))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 10), nn.ELU())
        self.is_real, self.which = nn.Linear(10, 1), nn.Linear(10, KINDS)

    def forward(self, picture):
        h = self.trunk(picture)
        return self.is_real(h), self.which(h)


def both_losses(answer, wanted, kind):
    return F.binary_cross_entropy_with_logits(answer[0], wanted) + F.cross_entropy(answer[1], kind)


def build():
    painter, critic = Painter(), Critic()
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.99)) for net in (painter, critic)]
    return painter, critic, optimizers, torch.rand(5, 9).double(), torch.tensor([0, 2, 1, 1, 0])


def step(painter, critic, optimizers, pictures, kinds):
    n = len(pictures)
    pictures, kinds = pictures.type(Tensor), kinds.type(LongTensor)
    ones, zeros = Variable(Tensor(n, 1).fill_(1)), Variable(Tensor(n, 1).fill_(0))
    z = Variable(Tensor(np.random.normal(size=(n, NOISE))))
    asked = Variable(LongTensor(np.random.randint(0, KINDS, n)))
    optimizers[0].zero_grad()
    painted = painter(z, asked)
    both_losses(critic(painted), ones, asked).backward()
    optimizers[0].step()

    optimizers[1].zero_grad()
    loss = both_losses(critic(pictures), ones, kinds) + both_losses(critic(painted.detach()), zeros, asked)
    loss.backward()
    optimizers[1].step()
