"""The rows of a minibatch are drawn by a seeded CPU generator, and finished rows are dropped by a CPU mask."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build():
    critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    rollout = {"obs": torch.randn(12, 3), "ret": torch.randn(12, 1), "done": torch.arange(12) % 4 == 3}
    return critic, torch.optim.Adam(critic.parameters()), rollout


def step(critic, optimizer, rollout, epochs=2):
    generator = torch.Generator(device="cpu").manual_seed(17)
    running = ~rollout["done"]
    obs = rollout["obs"].to(DEVICE)[running]
    ret = rollout["ret"].to(DEVICE)[running]
    for _ in range(epochs):
        order = torch.randperm(int(running.sum()), generator=generator)
        for start in range(0, len(order), 3):
            rows = order[start : start + 3]
            loss = F.mse_loss(critic(obs[rows]), ret[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    first = torch.nonzero(running).flatten()[0]
    return first.item(), obs[:, 0].mean().item()
