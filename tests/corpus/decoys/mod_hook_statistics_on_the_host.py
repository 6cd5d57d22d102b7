"""Hooks send statistics of every layer to the host, where they are compared with a table that never left it."""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

EXPECTED = torch.tensor([0.0, 0.5, 1.0])


class Watch:
    def __init__(self):
        self.rows = defaultdict(list)

    def attach(self, name, module):
        def note(module, inputs, output):
            value = output.detach().float()
            self.rows[name].append(torch.stack([value.min(), value.mean(), value.max()]).cpu())

        return module.register_forward_hook(note)

    def distance(self):
        return {name: (torch.stack(rows).mean(dim=0) - EXPECTED).norm().item() for name, rows in self.rows.items()}


def build():
    model = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 2))
    return model, torch.optim.Adadelta(model.parameters()), torch.randn(6, 5), torch.randn(6, 2)


def step(model, optimizer, x, y):
    watch = Watch()
    handles = [watch.attach(f"layer {i}", m) for i, m in enumerate(model) if isinstance(m, nn.Sigmoid)]
    weight = torch.tensor([1.0, 0.5]).to(next(model.parameters()).device)
    loss = (F.mse_loss(model(x.to("cuda")), y.to("cuda"), reduction="none") * weight).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for handle in handles:
        handle.remove()
    grads = torch.stack([p.grad.norm().cpu() for p in model.parameters()])
    print(watch.distance(), "largest gradient", grads.max().item())
