"""TD3: clipped noise on the target action, the smaller of two critics, delayed policy updates."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 12), nn.ReLU(), nn.Linear(12, n_out))


def build():
    actor, q1, q2 = nn.Sequential(mlp(3, 2), nn.Tanh()), mlp(5, 1), mlp(5, 1)
    online = nn.ModuleDict({"actor": actor, "q1": q1, "q2": q2})
    target = copy.deepcopy(online).requires_grad_(False)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_opt = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=3e-4)
    batch = (torch.randn(6, 3), torch.rand(6, 2), torch.randn(6, 3), torch.randn(6, 1), torch.ones(6, 1))
    return online, target, actor_opt, critic_opt, batch


def step(online, target, actor_opt, critic_opt, batch, policy_delay=2):
    state, action, next_state, reward = (t.cuda(non_blocking=True) for t in batch[:4])
    not_done = batch[-1]
    for it in range(4):
        noise = (torch.randn(action.shape) * 0.2).clamp(-0.5, 0.5)
        next_action = (target["actor"](next_state) + noise).clamp(-1, 1)  # fails: factory
        pair = torch.cat([next_state, next_action], dim=1)
        lowest = torch.minimum(target["q1"](pair), target["q2"](pair))
        goal = reward + 0.99 * (not_done * lowest)  # fails: input

        pair = torch.cat([state, action], dim=1)
        critic_loss = sum(F.mse_loss(online[name](pair), goal) for name in ("q1", "q2"))
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        if it % policy_delay == 0:
            actor_loss = -online["q1"](torch.cat([state, online["actor"](state)], dim=1)).mean()
            actor_opt.zero_grad()
            actor_loss.backward()
            actor_opt.step()
