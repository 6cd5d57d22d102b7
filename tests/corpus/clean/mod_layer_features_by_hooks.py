"""Hooks gather features of every layer of both networks; they are matched on the card and logged from the host."""

import torch
import torch.nn.functional as F
from torch import nn


class Features:
    def __init__(self, net, kinds=(nn.Linear,)):
        self.net, self.kinds = net, kinds

    def __enter__(self):
        self.kept, self.handles = [], []
        for module in self.net.modules():
            if isinstance(module, self.kinds):
                self.handles.append(module.register_forward_hook(lambda m, args, out: self.kept.append(out)))
        return self.kept

    def __exit__(self, *problem):
        for handle in self.handles:
            handle.remove()


def relations(z):
    z = F.normalize(z, dim=-1)
    return z @ z.T


def build():
    teacher = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))
    student = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    return teacher.requires_grad_(False), student, torch.optim.Adam(student.parameters()), torch.randn(4, 5)


def step(teacher, student, optimizer, x):
    x = x.to("cuda")
    with torch.no_grad(), Features(teacher) as wanted:
        teacher(x)
    with Features(student) as got:
        student(x)
    losses = [F.mse_loss(relations(a), relations(b)) for a, b in zip(got, wanted, strict=True)]
    loss = torch.stack(losses).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log = torch.stack([part.detach() for part in losses]).cpu()
    print("per layer", log.numpy().round(3), "largest", int(log.argmax()))
