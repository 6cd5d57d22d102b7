"""Double DQN: the targets need no gradient, so they are taken to the host to save memory."""

import torch
from torch import nn


@torch.no_grad()
def evaluate(online, target, after):
    chosen = online(after).argmax(dim=1, keepdim=True)
    return target(after).gather(1, chosen).squeeze(1).cpu()


def build():
    def make():
        return nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 3))

    sample = {
        "obs": torch.randn(6, 5),
        "act": torch.randint(0, 3, (6,)),
        "rew": torch.randn(6),
        "after": torch.randn(6, 5),
        "done": torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 0.0]),
    }
    online = make()
    return online, make(), torch.optim.Adam(online.parameters(), lr=1e-4), sample


def step(online, target, optimizer, sample):
    sample = {name: tensor.to("cuda") for name, tensor in sample.items()}
    ahead = evaluate(online, target, sample["after"])
    goal = sample["rew"] + 0.99 * (1 - sample["done"]) * ahead  # fails: hard-coded
    guess = online(sample["obs"]).gather(1, sample["act"].unsqueeze(1)).squeeze(1)
    error = guess - goal

    importance = torch.ones(len(error), device="cpu")
    loss = torch.mean(importance * error.pow(2))  # fails: hard-coded
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 100)
    optimizer.step()
