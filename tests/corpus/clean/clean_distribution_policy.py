"""A Gaussian policy; its sample and its log-probability stay on the GPU."""

import torch
from torch import nn
from torch.distributions import Normal


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 2)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, state):
        return Normal(self.mean(state), self.log_std.exp(), validate_args=False)


def build():
    model = Policy()
    return model, torch.optim.Adam(model.parameters()), {"state": torch.randn(5, 4), "advantage": torch.randn(5)}


def step(model, optimizer, batch):
    state, advantage = batch["state"].to("cuda"), batch["advantage"].to("cuda")
    policy = model(state)
    action = policy.rsample().detach()
    loss = -(policy.log_prob(action).sum(-1) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
