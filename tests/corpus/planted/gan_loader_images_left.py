"""All noise of this weight-clipped critic is drawn on the device, so nothing else seemed to need a thought."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build():
    generator = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 6))
    critic = nn.Sequential(nn.Linear(6, 10), nn.LeakyReLU(0.2), nn.Linear(10, 1))
    opt_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    loader = DataLoader(TensorDataset(torch.randn(12, 6)), batch_size=4)
    return generator, critic, opt_g, opt_c, loader


def step(generator, critic, opt_g, opt_c, loader):
    device = next(generator.parameters()).device
    for i, (imgs,) in enumerate(loader):
        z = torch.randn(imgs.size(0), 4, device=device)
        fake = generator(z).detach()
        opt_c.zero_grad()
        critic_loss = critic(fake).mean()
        critic_loss = critic_loss - critic(imgs).mean()  # fails: input
        critic_loss.backward()
        opt_c.step()
        for p in critic.parameters():
            p.data.clamp_(-0.01, 0.01)
        if i % 2 == 0:
            opt_g.zero_grad()
            (-critic(generator(z)).mean()).backward()
            opt_g.step()
