"""Trains a policy by REINFORCE with a baseline; the best weights are kept in a file."""
import argparse
import pickle
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=30)
parser.add_argument("--log-interval", type=int, default=1)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
eps = np.finfo(np.float32).eps.item()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(4, 16), nn.Dropout(p=0.2), nn.Linear(16, 2)
        self.value = nn.Linear(16, 1)
        self.saved = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.affine2(x), dim=1), self.value(x)


policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
baseline = torch.zeros(1)  # right: baseline = torch.zeros(1, device=device)


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0).to(device)
    probs, value = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved.append((m.log_prob(action), value))
    return action.item()


def finish_episode():
    global baseline
    R = 0
    returns = []
    for r in policy.rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)  # right: returns = torch.tensor(returns, device=device)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    log_probs = torch.cat([log_prob for log_prob, _ in policy.saved])
    values = torch.cat([value.squeeze(1) for _, value in policy.saved])
    policy_loss = (-log_probs * (returns - values.detach())).sum()  # fails: factory
    value_loss = F.smooth_l1_loss(values, returns)
    baseline = 0.9 * baseline + 0.1 * values.detach().mean(0, keepdim=True)  # fails: factory
    optimizer.zero_grad()
    (policy_loss + value_loss).backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved[:]


def main():
    running_reward, best = 10, -1e9
    folder = Path("policies")
    folder.mkdir(exist_ok=True)
    for i_episode in range(args.episodes):
        state, ep_reward = rng.normal(size=4), 0
        for t in count(1):
            action = select_action(state)
            state, reward, done = rng.normal(size=4), float(action), t >= 8
            policy.rewards.append(reward)
            ep_reward += reward
            if done:
                break
        running_reward = 0.05 * ep_reward + 0.95 * running_reward
        finish_episode()
        if i_episode % args.log_interval == 0:
            print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running_reward:.2f}")
            if ep_reward > best:
                best = ep_reward
                weights = {name: each.cpu().numpy() for name, each in policy.state_dict().items()}
                with (folder / "best.pkl").open("wb") as file:
                    pickle.dump(weights, file)
                assert pickle.loads((folder / "best.pkl").read_bytes()).keys() == weights.keys()


if __name__ == "__main__":
    main()
