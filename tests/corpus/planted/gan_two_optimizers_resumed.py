"""A few steps ran on the CPU as a smoke test, and then both networks were sent to the card."""

import torch
from torch import nn
from torch.nn.functional import softplus

OPTIONS = {"moved_by": "to"}


def build():
    torch.manual_seed(0)
    gen = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5))
    dis = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    gen_opt = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
    dis_opt = torch.optim.RMSprop(dis.parameters(), lr=1e-3)
    real = torch.randn(8, 5)
    train(gen, dis, gen_opt, dis_opt, real)
    return gen, dis, gen_opt, dis_opt, real


def train(gen, dis, gen_opt, dis_opt, real):
    fake = gen(torch.randn(real.size(0), 3, device=real.device))
    dis_opt.zero_grad()
    (softplus(-dis(real)).mean() + softplus(dis(fake.detach())).mean()).backward()
    dis_opt.step()  # fails: optimizer
    gen_opt.zero_grad()
    softplus(-dis(fake)).mean().backward()
    gen_opt.step()  # fails: optimizer


def step(gen, dis, gen_opt, dis_opt, real):
    train(gen, dis, gen_opt, dis_opt, real.to("cuda"))
