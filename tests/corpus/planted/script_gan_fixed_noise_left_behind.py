"""The same noise is drawn at the top of the script so that the pictures of all epochs can be compared."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LATENT = 5

generator = nn.Sequential(nn.Linear(LATENT, 12), nn.ReLU(), nn.Linear(12, 9), nn.Tanh()).to(DEVICE)
critic = nn.Sequential(nn.Linear(9, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1)).to(DEVICE)
opt_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
fixed_noise = torch.randn(4, LATENT)


def sample_images():
    generator.eval()
    with torch.no_grad():
        images = generator(fixed_noise)  # fails: loss
    generator.train()
    return images.view(-1, 3, 3).cpu()


def build():
    return (torch.rand(6, 9),)


def step(real):
    real = real.to(DEVICE)
    fake = generator(torch.randn(real.size(0), LATENT, device=DEVICE))
    loss_c = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake.detach())).mean()
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    loss_g = -critic(fake).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    print(f"critic {loss_c.item():.3f} generator {loss_g.item():.3f}")
    return sample_images()
