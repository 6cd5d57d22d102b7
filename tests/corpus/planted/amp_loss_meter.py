"""A meter sums the loss as a tensor, so that no step has to wait for the card."""

import torch
import torch.nn.functional as F
from torch import nn


class Meter:
    def __init__(self):
        self.total = torch.zeros(())
        self.count = 0

    def update(self, loss, n):
        self.total += loss.detach().float() * n  # fails: input
        self.count += n

    def average(self):
        return self.total.item() / max(self.count, 1)


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20)
    batches = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (4, 2)]
    return model, optimizer, scheduler, Meter(), batches


def step(model, optimizer, scheduler, meter, batches):
    for x, y in batches:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        meter.update(loss, len(x))
    print(f"train loss {meter.average():.4f}")
