"""Everything random comes from one generator on the CPU, so that runs on all machines draw the same numbers."""

import copy

import torch
from torch import nn
from torch.nn.functional import relu


def build():
    gen = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    dis = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 1))
    gen_opt = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
    dis_opt = torch.optim.Adam(dis.parameters(), lr=4e-3, betas=(0.0, 0.9))
    return gen, dis, gen_opt, dis_opt, torch.randn(20, 4)


def step(gen, dis, gen_opt, dis_opt, samples):
    rng = torch.Generator(device="cpu").manual_seed(1234)
    samples = samples.to("cuda")
    order = torch.randperm(len(samples), generator=rng)
    for rows in order.split(10):
        real = samples[rows]
        noise = torch.randn(len(rows), 3, generator=rng).to(real.device)
        fake = gen(noise)
        dis_opt.zero_grad()
        (relu(1 - dis(real)) + relu(1 + dis(fake.detach()))).mean().backward()
        dis_opt.step()
        gen_opt.zero_grad()
        dis(fake).mean().neg().backward()
        gen_opt.step()

    snapshot = copy.deepcopy(gen).cpu().eval()
    with torch.no_grad():
        pictures = snapshot(torch.randn(2, 3, generator=rng))
    return pictures.numpy()
