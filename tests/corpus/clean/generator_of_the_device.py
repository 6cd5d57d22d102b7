"""Generators on the chosen device, one made at the top and one in the step."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
noise = torch.Generator(device=device).manual_seed(3)


def build():
    return nn.Linear(4, 4).to(device), torch.randn(6, 4)


def step(model, x):
    x = x.to(device)
    own = torch.Generator(device)
    own.manual_seed(11)
    x = x + torch.randn(x.shape, generator=noise, device=device)
    order = torch.randperm(len(x), generator=own, device=device)
    out = model(x[order])
    out = out + torch.empty_like(out).normal_(generator=own)
    chosen = torch.multinomial(out.softmax(dim=1), 1, generator=noise)
    on_host = torch.randn(2, generator=torch.Generator().manual_seed(1))
    return out.gather(1, chosen).sum() + on_host.sum().item()
