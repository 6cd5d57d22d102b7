"""The teacher stays on the CPU by a switch; only its scores are sent."""

import torch
from torch import nn

TEACHER_ON_GPU = False
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
place = torch.device("cuda" if TEACHER_ON_GPU and torch.cuda.is_available() else "cpu")
student = nn.Linear(4, 3).to(device)
teacher = nn.Linear(4, 3).to(place)


def build():
    return (torch.randn(5, 4),)


def step(x):
    with torch.no_grad():
        goal = teacher(x.to(place))
    (student(x.to(device)) - goal.to(device)).square().mean().backward()
