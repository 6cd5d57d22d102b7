"""The usual small GPT script: buffers for masks, positions on the device of the ids, decay groups, accumulation."""

import math
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
ctx = nullcontext() if device == "cpu" else torch.amp.autocast(device_type=device, dtype=torch.bfloat16)
VOCAB, BLOCK, WIDTH = 30, 8, 12


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.ln, self.c_attn = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.wte.weight = self.head.weight
        self.register_buffer("hidden", torch.triu(torch.ones(BLOCK, BLOCK, dtype=torch.bool), 1), persistent=False)

    def forward(self, idx):
        t = idx.size(1)
        x = self.wte(idx) + self.wpe(torch.arange(t, device=idx.device))
        q, k, v = self.c_attn(self.ln(x)).chunk(3, dim=-1)
        att = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(self.hidden[:t, :t], float("-inf"))
        x = x + att.softmax(-1) @ v
        return self.head(x + self.mlp(x))


def get_batch(data):
    ix = torch.randint(len(data) - BLOCK, (4,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix.tolist()])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix.tolist()])
    return x.to(device), y.to(device)


def build():
    model = GPT()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=1e-3)
    return model, optimizer, (np.arange(300) % VOCAB).astype(np.uint16)


def step(model, optimizer, data):
    for _ in range(2):
        x, y = get_batch(data)
        with ctx:
            loss = F.cross_entropy(model(x).view(-1, VOCAB), y.view(-1)) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(0.3))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
