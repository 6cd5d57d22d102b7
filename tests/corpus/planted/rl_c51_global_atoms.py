"""Distributional Q-learning: the atoms are constants of the file, next to V_MIN and V_MAX."""

import torch
from torch import nn

V_MIN, V_MAX, N_ATOMS = -2.0, 2.0, 7
DELTA_Z = (V_MAX - V_MIN) / (N_ATOMS - 1)
ATOMS = torch.linspace(V_MIN, V_MAX, N_ATOMS)


class Distributional(nn.Module):
    def __init__(self, n_actions=2):
        super().__init__()
        self.n_actions = n_actions
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, n_actions * N_ATOMS))

    def forward(self, x):
        return self.net(x).view(-1, self.n_actions, N_ATOMS).softmax(-1)


def project(chosen, reward, done):
    n = reward.size(0)
    tz = (reward[:, None] + 0.99 * (1 - done)[:, None] * ATOMS).clamp(V_MIN, V_MAX)
    b = (tz - V_MIN) / DELTA_Z
    low = b.floor().clamp(0, N_ATOMS - 2)
    share = b - low
    first_of_row = torch.arange(n).unsqueeze(1) * N_ATOMS
    index = (low.long() + first_of_row).flatten()  # fails: factory
    out = torch.zeros(n * N_ATOMS, device=reward.device)
    out.index_add_(0, index, (chosen * (1 - share)).flatten())
    out.index_add_(0, index + 1, (chosen * share).flatten())
    return out.view(n, N_ATOMS)


def build():
    online, target = Distributional(), Distributional().eval()
    batch = [torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1]), torch.randn(5), torch.randn(5, 4), torch.zeros(5)]
    return online, target, torch.optim.Adam(online.parameters(), lr=1e-3), batch


def step(online, target, optimizer, batch):
    obs, action, reward, after, done = [t.to("cuda:0") for t in batch]
    rows = torch.arange(5, device=obs.device)
    with torch.no_grad():
        ahead = target(after)
        best = (ahead * ATOMS).sum(-1).argmax(1)  # fails: loss
        wanted = project(ahead[rows, best], reward, done)
    log_p = online(obs)[rows, action].clamp_min(1e-6).log()
    loss = -(wanted * log_p).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
