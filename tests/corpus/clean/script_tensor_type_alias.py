"""An adversarial script of the older kind: the choice of device is a choice between two tensor types."""

import numpy as np
import torch
from torch import nn

cuda = bool(torch.cuda.is_available())
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
latent_dim = 4

generator = nn.Sequential(nn.Linear(latent_dim, 8), nn.LeakyReLU(0.2), nn.Linear(8, 9), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(9, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid())
adversarial_loss = torch.nn.BCELoss()
if cuda:
    generator.cuda()
    discriminator.cuda()
    adversarial_loss.cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))


def build():
    return (torch.rand(5, 9),)


def step(imgs):
    valid = torch.ones(imgs.size(0), 1).type(Tensor)
    fake = torch.zeros(imgs.size(0), 1).type(Tensor)
    real_imgs = imgs.type(Tensor)

    optimizer_g.zero_grad()
    z = torch.from_numpy(np.random.normal(0, 1, (imgs.shape[0], latent_dim))).type(Tensor)
    gen_imgs = generator(z)
    g_loss = adversarial_loss(discriminator(gen_imgs), valid)
    g_loss.backward()
    optimizer_g.step()

    optimizer_d.zero_grad()
    real_loss = adversarial_loss(discriminator(real_imgs), valid)
    fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    optimizer_d.step()
    print(f"[D loss: {d_loss.item():f}] [G loss: {g_loss.item():f}]")
