"""The rollout is long, so it is stored in host memory on purpose; only minibatches go to the GPU."""

import torch
from torch import nn
from torch.distributions import Categorical


class Rollout:
    def __init__(self, steps, envs):
        home = torch.device("cpu")
        self.obs = torch.zeros(steps, envs, 4, device=home)
        self.act = torch.zeros(steps, envs, dtype=torch.long, device=home)
        self.logp = torch.zeros(steps, envs, device=home)

    def minibatches(self, size, device):
        order = torch.randperm(self.act.numel())
        fields = [self.obs.flatten(0, 1), self.act.flatten(), self.logp.flatten()]
        for rows in order.split(size):
            yield [field[rows].to(device) for field in fields]


def build():
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return policy, torch.optim.Adam(policy.parameters())


def step(policy, optimizer, steps=5, envs=4):
    rollout = Rollout(steps, envs)
    obs = torch.randn(envs, 4, device="cuda")
    for t in range(steps):
        with torch.no_grad():
            dist = Categorical(logits=policy(obs))
        act = dist.sample()
        rollout.obs[t] = obs
        rollout.act[t].copy_(act)
        rollout.logp[t] = dist.log_prob(act)
        obs = obs.roll(1, 0) * 0.9
    gain = rollout.obs.sum(-1)
    print(gain.mean().item(), gain.std().item())
    for obs, act, logp in rollout.minibatches(8, "cuda"):
        ratio = (Categorical(logits=policy(obs)).log_prob(act) - logp).exp()
        loss = -(ratio * obs.sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
