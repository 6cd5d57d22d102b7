"""A variational autoencoder on the best device there is, with samples drawn at the end of the epoch."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cpu")
if torch.cuda.is_available():
    DEVICE = torch.device("cuda")
elif torch.backends.mps.is_available():
    DEVICE = torch.device("mps")
Z = 2


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 8)
        self.mean = nn.Linear(8, Z)
        self.log_var = nn.Linear(8, Z)

    def forward(self, x):
        h = F.leaky_relu(self.body(x), 0.2)
        return self.mean(h), self.log_var(h)


class Model(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x):
        mean, log_var = self.encoder(x)
        epsilon = torch.randn(mean.shape).to(DEVICE)
        return self.decoder(mean + torch.exp(0.5 * log_var) * epsilon), mean, log_var


def build():
    model = Model(Encoder(), nn.Sequential(nn.Linear(Z, 8), nn.ReLU(), nn.Linear(8, 12), nn.Sigmoid())).to(DEVICE)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), [torch.rand(4, 12), torch.rand(4, 12)]


def step(model, optimizer, loader):
    overall_loss = 0
    for x in loader:
        x = x.to(DEVICE)
        optimizer.zero_grad()
        x_hat, mean, log_var = model(x)
        loss = F.binary_cross_entropy(x_hat, x, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        overall_loss += loss.item()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        generated = model.decoder(torch.randn(3, Z, device=DEVICE))
    return overall_loss, generated.cpu().view(3, 3, 4)
