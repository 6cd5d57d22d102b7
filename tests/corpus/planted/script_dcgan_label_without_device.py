"""Adversarial training from a flat script: both nets and optimizers are globals, and one label tensor serves twice."""

import torch
from torch import nn, optim

ngpu = 1
nz, ngf = 6, 4
device = torch.device("cuda:0" if (torch.cuda.is_available() and ngpu > 0) else "cpu")

generator = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
critic = nn.Sequential(
    nn.Conv2d(1, ngf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ngf, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
criterion = nn.BCELoss()
fixed_noise = torch.randn(3, nz, 1, 1, device=device)
optimizer_d = optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))


def build():
    return ((torch.rand(4, 1, 8, 8) * 2 - 1, torch.zeros(4)),)


def step(data):
    critic.zero_grad()
    real = data[0].to(device)
    b_size = real.size(0)
    label = torch.full((b_size,), 1.0, dtype=torch.float)
    err_real = criterion(critic(real).view(-1), label)  # fails: factory
    err_real.backward()
    fake = generator(torch.randn(b_size, nz, 1, 1, device=device))
    label.fill_(0.0)
    err_fake = criterion(critic(fake.detach()).view(-1), label)
    err_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    label.fill_(1.0)
    criterion(critic(fake).view(-1), label).backward()
    optimizer_g.step()
    with torch.no_grad():
        return generator(fixed_noise).detach().cpu()
