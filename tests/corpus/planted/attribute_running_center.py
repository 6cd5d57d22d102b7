"""Self-distillation keeps a running centre of the teacher's outputs."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Distiller(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.student = nn.Linear(width, width)
        self.teacher = nn.Linear(width, width).requires_grad_(False)
        self.center = torch.zeros(width)

    def update(self, teacher_out):
        decayed = self.center * 0.9
        self.center = decayed + teacher_out.mean(0) * 0.1  # fails: attribute

    def forward(self, x):
        teacher_out = self.teacher(x)
        loss = -(teacher_out.softmax(-1) * F.log_softmax(self.student(x), dim=-1)).sum(-1).mean()
        self.update(teacher_out)
        return loss


def build():
    model = Distiller()
    return model, torch.optim.AdamW(model.student.parameters()), torch.randn(3, 6)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x.to("cuda")).backward()
    optimizer.step()
