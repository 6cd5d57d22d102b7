"""Soft actor-critic: the agent owns its networks, its log_alpha, and three optimizers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal


class Agent:
    def __init__(self, obs=3, act=1):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.actor = nn.Linear(obs, 2 * act).to(self.device)
        self.critics = nn.ModuleList([nn.Linear(obs + act, 1), nn.Linear(obs + act, 1)]).to(self.device)
        self.log_alpha = torch.zeros(1, requires_grad=True, device=self.device)
        self.target_entropy = -torch.prod(torch.Tensor([act]).to(self.device)).item()
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_opt = torch.optim.Adam(self.critics.parameters(), lr=3e-4)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def act(self, obs):
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        normal = Normal(mean, log_std.tanh().exp())
        raw = normal.rsample()
        log_prob = normal.log_prob(raw) - torch.log(1 - raw.tanh().pow(2) + 1e-6)
        return raw.tanh(), log_prob.sum(-1, keepdim=True)

    def q(self, obs, action):
        return [critic(torch.cat([obs, action], dim=-1)) for critic in self.critics]

    def update(self, batch):
        obs, action, reward, after = (torch.as_tensor(item, device=self.device) for item in batch)
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            ahead, log_prob = self.act(after)
            goal = reward + 0.99 * (torch.min(*self.q(after, ahead)) - alpha * log_prob)
        critic_loss = sum(F.mse_loss(q, goal) for q in self.q(obs, action))
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        fresh, log_prob = self.act(obs)
        actor_loss = (alpha * log_prob - torch.min(*self.q(obs, fresh))).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()

        alpha_loss = (-self.log_alpha.exp() * (log_prob.detach() + self.target_entropy)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        return {"critic": critic_loss.item(), "actor": actor_loss.item(), "alpha": alpha}


def build():
    return Agent(), (torch.randn(6, 3), torch.rand(6, 1), torch.randn(6, 1), torch.randn(6, 3))


def step(agent, batch):
    for _ in range(2):
        print(agent.update(batch))
