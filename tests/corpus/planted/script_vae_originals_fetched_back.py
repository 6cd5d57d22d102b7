"""The originals are fetched back for the picture of the epoch, and the loss then picks up the wrong variable."""

import torch
import torch.nn.functional as F
from torch import nn, optim

use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")


class ConvVAE(nn.Module):
    def __init__(self, z_dim=3):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.stats = nn.Linear(36, 2 * z_dim)
        self.up = nn.Linear(z_dim, 36)

    def forward(self, x):
        mu, logvar = self.stats(F.elu(self.down(x)).flatten(1)).chunk(2, dim=1)
        z = torch.randn_like(mu).mul(logvar.mul(0.5).exp()).add(mu)
        return torch.sigmoid(self.up(z)).view_as(x), mu, logvar


model = ConvVAE()
if use_cuda:
    model.cuda()
optimizer = optim.Adam(model.parameters(), lr=1e-3)


def build():
    return ([torch.rand(4, 1, 6, 6), torch.rand(2, 1, 6, 6)],)


def step(train_loader):
    train_loss = 0.0
    for data in train_loader:
        data = data.to(device)
        originals = data.cpu()
        recon, mu, logvar = model(data)
        pictures = torch.cat([originals[:2], recon.detach().cpu()[:2]])
        bce = F.binary_cross_entropy(recon, originals, reduction="sum")  # fails: hard-coded
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        optimizer.zero_grad()
        (bce + kld).backward()
        optimizer.step()
        train_loss += (bce + kld).item()
    return train_loss, pictures
