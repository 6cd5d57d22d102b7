"""Everything of the adversarial game lives at the top of the script; the step only gets the pictures."""

import torch
from torch import nn, optim

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
nz = 5
real_label, fake_label = 1.0, 0.0


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)


net_g = nn.Sequential(
    nn.ConvTranspose2d(nz, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.ConvTranspose2d(4, 1, 4, 2), nn.Tanh()
)
net_d = nn.Sequential(nn.Conv2d(1, 4, 4, 2), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 1, 3))
net_g.to(device).apply(weights_init)
net_d.to(device).apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(4, nz, 1, 1, device=device)
optimizer_d = optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
img_list, g_losses = [], []


def build():
    return (torch.rand(3, 1, 8, 8),)


def step(images):
    net_d.zero_grad()
    real = images.to(device)
    label = torch.full((real.size(0),), real_label, dtype=torch.float, device=device)
    criterion(net_d(real).view(-1), label).backward()
    fake = net_g(torch.randn(real.size(0), nz, 1, 1, device=device))
    label.fill_(fake_label)
    criterion(net_d(fake.detach()).view(-1), label).backward()
    optimizer_d.step()

    net_g.zero_grad()
    label.fill_(real_label)
    err_g = criterion(net_d(fake).view(-1), label)
    err_g.backward()
    optimizer_g.step()
    g_losses.append(err_g.item())
    with torch.no_grad():
        img_list.append(net_g(fixed_noise).detach().cpu())
