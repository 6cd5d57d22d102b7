"""The same noise is used for every preview, so it is drawn once and kept with the generator."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Generator(nn.Module):
    def __init__(self, nz=3, width=8, out=4, previews=5):
        super().__init__()
        self.nz = nz
        self.net = nn.Sequential(nn.Linear(nz, width), nn.ReLU(), nn.Linear(width, out), nn.Tanh())
        self.preview_noise = torch.randn(previews, nz)

    def sample(self, n, device):
        return self.net(torch.randn(n, self.nz, device=device))

    @torch.no_grad()
    def preview(self):
        return self.net(self.preview_noise)  # fails: attribute


def build():
    netg, netd = Generator(), nn.Linear(4, 1)
    optg = torch.optim.Adam(netg.parameters(), betas=(0.5, 0.999))
    optd = torch.optim.Adam(netd.parameters(), betas=(0.5, 0.999))
    return netg, netd, optg, optd, torch.randn(6, 4).tanh()


def step(netg, netd, optg, optd, real):
    real = real.to("cuda")
    fake = netg.sample(len(real), real.device)
    loss_d = F.relu(1 - netd(real)).mean() + F.relu(1 + netd(fake.detach())).mean()
    optd.zero_grad()
    loss_d.backward()
    optd.step()

    loss_g = -netd(fake).mean()
    optg.zero_grad()
    loss_g.backward()
    optg.step()
    pictures = netg.preview()
    print("mean of the previews", pictures.mean().item())
