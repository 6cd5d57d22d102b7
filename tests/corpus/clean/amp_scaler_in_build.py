"""float16 with a scaler; warm-up by a function of the step, gradients unscaled before they are clipped."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    model = nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    return model, optimizer, warmup, scaler, [(torch.randn(3, 2, 8), torch.randint(0, 4, (3,))) for _ in range(2)]


def step(model, optimizer, warmup, scaler, batches):
    for signal, label in batches:
        signal, label = signal.to("cuda", non_blocking=True), label.to("cuda", non_blocking=True)
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(signal), label, label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
        print(f"loss {loss.item():.3f} norm {float(norm):.3f} lr {warmup.get_last_lr()[0]:.2e}")
