"""Train with bfloat16, validate, keep the best weights as a copy beside the model on whatever device it has."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
AMP = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)


class Run:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
        head = list(self.model[3].parameters())
        body = [*self.model[0].parameters(), *self.model[1].parameters()]
        self.optimizer = torch.optim.Adam([{"params": body, "lr": 1e-4}, {"params": head, "lr": 1e-3}])
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=10)
        self.best, self.best_weights = float("inf"), None

    def train(self, batches):
        self.model.train()
        for x, y in batches:
            with AMP:
                guess = self.model(x.to(DEVICE))
                loss = F.smooth_l1_loss(guess, y.to(DEVICE))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def validate(self, batches):
        self.model.eval()
        losses = [F.l1_loss(self.model(x.to(DEVICE)), y.to(DEVICE)) for x, y in batches]
        mean = torch.stack(losses).mean()
        if mean < self.best:
            self.best, self.best_weights = mean.item(), copy.deepcopy(self.model.state_dict())
        return mean.item()


def build():
    return Run(), [(torch.randn(4, 5), torch.randn(4, 1)) for _ in range(2)]


def step(run, batches):
    run.train(batches)
    run.validate(batches)
    if run.best_weights is not None:
        run.model.load_state_dict(run.best_weights)
