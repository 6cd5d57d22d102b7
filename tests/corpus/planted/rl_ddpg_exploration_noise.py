"""DDPG: act with a little Gaussian noise, then learn from a buffer of CPU tensors."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, s):
        return torch.tanh(self.fc2(F.relu(self.fc1(s))))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 1)

    def forward(self, s, a):
        return self.fc2(F.relu(self.fc1(torch.cat([s, a], 1))))


def build():
    nets = nn.ModuleList([Actor(), Critic(), Actor(), Critic()])
    nets[2].load_state_dict(nets[0].state_dict())
    nets[3].load_state_dict(nets[1].state_dict())
    optims = [torch.optim.Adam(net.parameters(), lr=1e-3) for net in nets[:2]]
    buffer = {"s": torch.randn(32, 3), "a": torch.rand(32, 2) * 2 - 1, "r": torch.randn(32, 1)}
    buffer["s2"] = buffer["s"] + 0.1
    return nets, optims, buffer


def step(nets, optims, buffer, tau=0.01):
    actor, critic, actor_slow, critic_slow = nets
    state = buffer["s"][:1].to(DEVICE)
    with torch.no_grad():
        noisy = actor(state) + 0.1 * torch.randn(2)  # fails: factory
    buffer["a"][0] = noisy.clamp(-1, 1)[0].cpu()

    rows = torch.randint(0, 32, (8,))
    s, a, s2 = (buffer[k][rows].to(DEVICE) for k in ("s", "a", "s2"))
    reward = buffer["r"][rows]
    with torch.no_grad():
        y = reward + 0.99 * critic_slow(s2, actor_slow(s2))  # fails: input
    for optim, objective in zip(
        optims[::-1], (lambda: F.mse_loss(critic(s, a), y), lambda: -critic(s, actor(s)).mean())
    ):
        optim.zero_grad()
        objective().backward()
        optim.step()
    for slow, fast in zip(nets[2:].parameters(), nets[:2].parameters()):
        slow.data.mul_(1 - tau).add_(tau * fast.data)
