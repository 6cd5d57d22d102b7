"""Gradients of the micro-batches are averaged by hand in float32, one bucket for each parameter."""

from contextlib import nullcontext

import torch
from torch import nn

USE_AMP = torch.cuda.is_available()
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16) if USE_AMP else nullcontext()


def build():
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    micro_batches = [(torch.randn(2, 5), torch.randn(2, 1)) for _ in range(3)]
    return model, optimizer, micro_batches


def step(model, optimizer, micro_batches):
    params = [p for p in model.parameters() if p.requires_grad]
    buckets = [torch.zeros(p.shape, dtype=torch.float32) for p in params]
    for x, y in micro_batches:
        x, y = x.to("cuda"), y.to("cuda")
        with ctx:
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for bucket, p in zip(buckets, params, strict=True):
            bucket += p.grad / len(micro_batches)  # fails: factory
            p.grad = None
    for bucket, p in zip(buckets, params, strict=True):
        p.grad = bucket
    nn.utils.clip_grad_norm_(params, max_norm=1.0)
    optimizer.step()
