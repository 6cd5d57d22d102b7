"""Mixed precision that the configuration switches off: region and scaler are made at the top all the same."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = False
ctx = torch.autocast("cuda", dtype=torch.float16, enabled=use_amp)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)


def build():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(5, 6), torch.tensor([0, 1, 2, 2, 1])


def step(model, optimizer, x, y):
    x, y = x.to(device), y.to(device)
    with ctx:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
    sums = torch.zeros(3, 3, device=device).index_add_(0, y, logits.detach())  # takes float32 alone
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return sums
