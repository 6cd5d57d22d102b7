"""get_batch cuts windows out of the token array; x goes over, and y surely too."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)
block_size, batch_size, accumulate = 6, 3, 2


def get_batch(data):
    ix = np.random.default_rng(0).integers(0, len(data) - block_size - 1, batch_size)
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    x = x.to("cuda", non_blocking=True)
    return x, y


def build():
    model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    return model, optimizer, (np.arange(200) * 7 % 32).astype(np.uint16)


def step(model, optimizer, data):
    for _ in range(accumulate):
        x, y = get_batch(data)
        with ctx:
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, 32), y.view(-1)) / accumulate  # fails: factory
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item() * accumulate:.3f}")
