"""Advantage actor-critic, one environment: numbers become tensors on the device of the model."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Bandit:
    def __init__(self, arms=3):
        self.rng = np.random.default_rng(0)
        self.mean = self.rng.normal(size=arms)

    def context(self):
        return self.rng.random(4, dtype=np.float32)

    def pull(self, arm):
        return float(self.mean[arm] + 0.1 * self.rng.normal())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 8)
        self.policy, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

    @property
    def device(self):
        return self.shared.weight.device

    def forward(self, x):
        h = torch.relu(self.shared(x))
        return self.policy(h).softmax(-1), self.value(h).squeeze(-1)


def build():
    net = Net()
    return net, torch.optim.RMSprop(net.parameters(), lr=1e-3, eps=1e-5), Bandit()


def step(net, optimizer, bandit):
    kept = []
    for _ in range(6):
        probs, value = net(torch.tensor(bandit.context(), device=net.device))
        dist = Categorical(probs)
        arm = dist.sample()
        kept.append((dist.log_prob(arm), value, dist.entropy(), bandit.pull(arm.item())))

    log_probs, values, entropies, rewards = zip(*kept)
    returns = torch.tensor(np.cumsum(rewards[::-1])[::-1].copy(), dtype=torch.float32, device=net.device)
    old = torch.tensor([v.detach() for v in values], device=net.device)
    advantage = returns - old
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    actor_loss = -(torch.stack(log_probs) * advantage).mean() - 0.01 * sum(entropies) / len(entropies)
    critic_loss = (returns - torch.stack(values)).pow(2).mean()
    optimizer.zero_grad()
    (actor_loss + 0.5 * critic_loss).backward()
    optimizer.step()
    print(f"actor {actor_loss.item():.3f} critic {critic_loss.item():.3f} best {bandit.mean.argmax()}")
