"""The teacher's answers are parked on another card during distillation."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    teacher = nn.Linear(6, 4).requires_grad_(False)
    student = nn.Linear(6, 4)
    return teacher, student, torch.optim.Adam(student.parameters()), torch.randn(5, 6)


def step(teacher, student, optimizer, x):
    x = x.to("cuda")
    wanted = teacher(x).softmax(-1).to("cuda:1")
    got = student(x).log_softmax(-1)
    loss = F.kl_div(got, wanted, reduction="batchmean")  # fails: hard-coded
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
