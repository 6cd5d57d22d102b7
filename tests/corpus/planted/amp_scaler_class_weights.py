"""Mixed precision is switched on for a run that began on the CPU; weights for the classes are at the top."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}

scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
CLASS_WEIGHTS = torch.tensor([0.3, 1.0, 2.5])


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 3))
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}])
    F.cross_entropy(model(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer, (torch.randn(5, 6), torch.tensor([2, 1, 0, 0, 1]))


def step(model, optimizer, batch):
    x, y = (t.cuda() for t in batch)
    with torch.amp.autocast("cuda", dtype=torch.float16):
        logits = model(x)
        loss = F.cross_entropy(logits, y, weight=CLASS_WEIGHTS)  # fails: loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)  # fails: optimizer
    scaler.update()
    optimizer.zero_grad()
