"""The focal loss is bound to its settings with partial and then only called with logits and targets."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


def focal_loss(logits, target, alpha, gamma):
    log_p = F.log_softmax(logits, dim=-1)
    picked = log_p.gather(1, target.unsqueeze(1)).squeeze(1)
    balance = alpha[target]  # fails: closure
    return -(balance * (1 - picked.exp()) ** gamma * picked).mean()


class LesionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
        self.criterion = partial(focal_loss, alpha=torch.tensor([0.1, 0.3, 0.6]), gamma=2.0)

    def forward(self, scan, target):
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            logits = self.features(scan)
        return self.criterion(logits.float(), target)


def build():
    net = LesionNet()
    return net, torch.optim.Adam(net.parameters()), {"scan": torch.rand(5, 1, 7, 7), "target": torch.arange(5) % 3}


def step(net, optimizer, batch):
    batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
    loss = net(**batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
