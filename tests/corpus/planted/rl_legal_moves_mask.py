"""Several agents, one policy: each sees its own number, and illegal moves get a very low logit."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Board:
    def __init__(self, agents=3, moves=5):
        self.agents, self.moves = agents, moves
        self.rng = np.random.default_rng(2)

    def observe(self):
        return self.rng.standard_normal((self.agents, 4)).astype("float32")

    def legal(self):
        table = self.rng.random((self.agents, self.moves)) < 0.5
        table[:, 0] = True
        return table

    def play(self, moves):
        return (moves == 0).astype("float32")


def build():
    board = Board()
    policy = nn.Sequential(nn.Linear(4 + board.agents, 16), nn.Tanh(), nn.Linear(16, board.moves))
    return policy, torch.optim.SGD(policy.parameters(), lr=0.05), board


def step(policy, optimizer, board):
    obs = torch.as_tensor(board.observe(), device="cuda")
    who = torch.Tensor(np.eye(board.agents))
    logits = policy(torch.cat((obs, who), dim=-1))  # fails: factory
    legal = torch.asarray(board.legal())
    logits = logits.masked_fill(~legal, -1e8)  # fails: factory
    dist = Categorical(logits=logits)
    moves = dist.sample()
    reward = board.play(moves.cpu().numpy())
    loss = -(dist.log_prob(moves) * torch.as_tensor(reward, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
