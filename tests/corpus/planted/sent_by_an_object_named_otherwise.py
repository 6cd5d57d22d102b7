"""A learner whose methods call it `this`: it sends its network, and forgets the scale of its inputs."""

import torch
from torch import nn


class Learner:
    def __init__(this, device):  # noqa: N805
        this.device = device
        this.network = nn.Linear(4, 2).to(this.device)
        this.scale = torch.tensor([1.0, 0.5, 0.5, 2.0])
        this.optimizer = torch.optim.SGD(this.network.parameters(), lr=0.1)

    def learn(this, inputs):  # noqa: N805
        loss = this.network(inputs.to(this.device) * this.scale).square().mean()  # fails: loss
        this.optimizer.zero_grad()
        loss.backward()
        this.optimizer.step()


def build():
    return Learner("cuda" if torch.cuda.is_available() else "cpu"), torch.randn(3, 4)


def step(learner, inputs):
    learner.learn(inputs)
