"""DDPM sampling with the schedule in host memory; it is read one number at a time."""

import torch
from torch import nn

STEPS = 10
BETAS = torch.linspace(1e-4, 0.2, STEPS, device="cpu")
ALPHAS = 1.0 - BETAS
ALPHAS_BAR = torch.cumprod(ALPHAS, dim=0)


class Eps(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 16), nn.SiLU(), nn.Linear(16, dim))

    def forward(self, x, level):
        return self.net(torch.cat([x, torch.ones_like(x[:, :1]) * level], dim=1))


def build():
    return (Eps().eval(),)


@torch.no_grad()
def step(model, n=3):
    x = torch.randn(n, 4, device="cuda")
    for t in reversed(range(STEPS)):
        beta, alpha, alpha_bar = BETAS[t], ALPHAS[t], ALPHAS_BAR[t]
        eps = model(x, alpha_bar.sqrt())
        x = (x - beta / (1 - alpha_bar).sqrt() * eps) / alpha.sqrt()
        if t > 0:
            x = x + beta.sqrt() * torch.randn_like(x)
    return x.cpu().numpy()
