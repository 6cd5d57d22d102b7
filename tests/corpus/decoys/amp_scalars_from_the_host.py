"""Zero-dimensional tensors of the host scale and clamp what is on the card: CUDA takes them as plain numbers."""

import torch
import torch.nn.functional as F
from torch import nn

TEMPERATURE = torch.tensor(0.5)
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)


def build():
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, [(torch.randn(3, 6), torch.randint(0, 4, (3,))) for _ in range(2)]


def step(model, optimizer, micro_batches):
    share = torch.tensor(1 / len(micro_batches))
    floor = torch.tensor(0.0)
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for x, y in micro_batches:
        x, y = x.to("cuda"), y.to("cuda")
        with ctx:
            logits = model(x) / TEMPERATURE
        each = F.cross_entropy(logits.float(), y, reduction="none")
        each = torch.where(each > 0.01, each, floor)
        loss = share * each.mean()
        loss.backward()
        total = total + loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {total.item():.3f} norm {norm.cpu().item():.3f}")
