"""Model, optimizer and a weighted criterion at module level, all on whatever accelerator there is."""

import torch
from torch import nn

accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
device = accelerator or torch.device("cpu")

positive_weight = torch.tensor([3.0, 1.0, 8.0])
thresholds = torch.tensor([0.5, 0.4, 0.6], device=device)
criterion = nn.BCEWithLogitsLoss(pos_weight=positive_weight).to(device)
model = nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Mish(), nn.Linear(9, 3)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)


def f1(predicted, wanted):
    hit = (predicted & wanted).sum(0)
    return (2 * hit / (predicted.sum(0) + wanted.sum(0)).clamp(min=1)).mean()


def build():
    return torch.randn(8, 7), (torch.rand(8, 3) > 0.6)


def step(rows, tags):
    rows, tags = rows.to(device), tags.to(device)
    logits = model(rows)
    loss = criterion(logits, tags.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    with torch.inference_mode():
        score = f1(model(rows).sigmoid() > thresholds, tags)
    print(f"loss {loss.item():.3f} f1 {score.item():.3f}")
