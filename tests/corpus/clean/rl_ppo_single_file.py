"""PPO with its rollout storage on the device; an epoch is cut short when the policy has moved too far."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Envs:
    n, rng = 2, np.random.default_rng(4)

    def reset(self):
        return self.rng.normal(size=(self.n, 3))

    def step(self, actions):
        return self.reset(), actions.astype(float), self.rng.random(self.n) < 0.1


def build():
    agent = nn.ModuleDict({"pi": nn.Linear(3, 3), "v": nn.Linear(3, 1)}).to(device)
    return agent, torch.optim.Adam(agent.parameters(), lr=1e-3), Envs()


def step(agent, optimizer, envs, steps=4, minibatch=4):
    obs = torch.zeros((steps, envs.n, 3), device=device)
    actions = torch.zeros((steps, envs.n), dtype=torch.long).to(device)
    logprobs, rewards, dones, values = (torch.zeros((steps, envs.n)).to(device) for _ in range(4))
    next_obs, next_done = torch.Tensor(envs.reset()).to(device), torch.zeros(envs.n).to(device)
    for t in range(steps):
        obs[t], dones[t] = next_obs, next_done
        with torch.no_grad():
            dist = Categorical(logits=agent["pi"](next_obs))
            action, values[t] = dist.sample(), agent["v"](next_obs).view(-1)
        actions[t], logprobs[t] = action, dist.log_prob(action)
        seen, reward, done = envs.step(action.cpu().numpy())
        rewards[t] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(seen).to(device), torch.Tensor(done).to(device)

    with torch.no_grad():
        advantages, carry, following = torch.zeros_like(rewards), 0, agent["v"](next_obs).view(-1)
        for t in reversed(range(steps)):
            alive = 1.0 - (next_done if t == steps - 1 else dones[t + 1])
            delta = rewards[t] + 0.99 * following * alive - values[t]
            advantages[t] = carry = delta + 0.9405 * alive * carry
            following = values[t]
    flat = [field.flatten(0, 1) for field in (obs, actions, logprobs, advantages)]
    for _ in range(3):
        order = np.random.permutation(steps * envs.n)
        for start in range(0, len(order), minibatch):
            x, act, logp, adv = (field[order[start : start + minibatch]] for field in flat)
            log_ratio = Categorical(logits=agent["pi"](x)).log_prob(act) - logp
            kl = (log_ratio.exp() - 1 - log_ratio).mean()
            optimizer.zero_grad()
            torch.max(-log_ratio.exp() * adv, -log_ratio.exp().clamp(0.8, 1.2) * adv).mean().backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        if kl.item() > 0.02:
            break
