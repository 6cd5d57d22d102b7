"""A recurrent policy; the first hidden state is made where the settings say."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributions import Categorical


class Recurrent(nn.Module):
    def __init__(self, n_obs, hidden, n_actions):
        super().__init__()
        self.cell = nn.GRUCell(n_obs, hidden)
        self.head = nn.Linear(hidden, n_actions)

    def forward(self, x, h):
        h = self.cell(x, h)  # fails: stale-device
        return Categorical(logits=self.head(h)), h


def build():
    args = SimpleNamespace(hidden=8, n_obs=3, n_actions=2, n_envs=4, device="cpu", gamma=0.9)
    policy = Recurrent(args.n_obs, args.hidden, args.n_actions)
    return args, policy, torch.optim.Adam(policy.parameters(), lr=1e-3), torch.randn(5, 4, 3), torch.randn(5, 4)


def step(args, policy, optimizer, observations, rewards):
    observations = observations.to("cuda")
    hidden = torch.zeros(args.n_envs, args.hidden, device=args.device)
    log_probs = []
    for obs in observations:
        dist, hidden = policy(obs, hidden)
        log_probs.append(dist.log_prob(dist.sample()))
    reward_to_go = rewards.flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probs) * reward_to_go).mean()  # fails: input
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
