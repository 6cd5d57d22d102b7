"""A value agent learns from transitions; its actions stay behind, and done used to be an integer."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Transition(NamedTuple):
    state: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_state: torch.Tensor
    done: torch.Tensor


class Agent:
    def __init__(self, n_obs, n_actions, device):
        self.device = device
        self.gamma = 0.95
        self.policy_net = nn.Sequential(nn.Linear(n_obs, 8), nn.ReLU(), nn.Linear(8, n_actions)).to(device)
        self.target_net = nn.Sequential(nn.Linear(n_obs, 8), nn.ReLU(), nn.Linear(8, n_actions)).to(device)
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = torch.optim.AdamW(self.policy_net.parameters(), lr=1e-3, amsgrad=True)

    def learn(self, batch):
        state, next_state = batch.state.to(self.device), batch.next_state.to(self.device)
        reward, done = batch.reward.to(self.device), batch.done.to(self.device)
        value = self.policy_net(state).gather(1, batch.action.unsqueeze(1)).squeeze(1)  # fails: input
        with torch.no_grad():
            best = self.target_net(next_state).max(dim=1).values
        goal = reward + self.gamma * best * (1 - done)  # fails: error
        loss = F.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.policy_net.parameters(), 100)
        self.optimizer.step()
        return loss.item()


def build():
    done = torch.tensor([False, False, True, False])
    batch = Transition(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), torch.ones(4), torch.randn(4, 3), done)
    return Agent(3, 2, DEVICE), batch


def step(agent, batch):
    return agent.learn(batch)
