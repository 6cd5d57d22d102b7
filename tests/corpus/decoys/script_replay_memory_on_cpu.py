"""The replay memory is large and stays in host memory; what is drawn from it is sent over before it is used."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ReplayMemory:
    def __init__(self, capacity, n_obs, device=torch.device("cpu")):
        self.states = torch.zeros(capacity, n_obs, device=device)
        self.actions = torch.zeros(capacity, dtype=torch.long, device=device)
        self.rewards = torch.zeros(capacity, device=device)
        self.size = 0

    def push(self, state, action, reward):
        self.states[self.size] = state
        self.actions[self.size] = action
        self.rewards[self.size] = reward
        self.size += 1

    def sample(self, batch_size):
        rows = torch.randint(0, self.size, (batch_size,))
        return self.states[rows], self.actions[rows], self.rewards[rows]


def build():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    return net, torch.optim.Adam(net.parameters()), ReplayMemory(20, 3), torch.randn(5, 3)


def step(net, optimizer, memory, observations):
    for obs in observations:
        obs = obs.to(DEVICE)
        with torch.no_grad():
            action = net(obs).argmax()
        memory.push(obs, action, obs.sum())
    states, actions, rewards = (t.to(DEVICE) for t in memory.sample(4))
    values = net(states).gather(1, actions[:, None]).squeeze(1)
    loss = F.mse_loss(values, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
