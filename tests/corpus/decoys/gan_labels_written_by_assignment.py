"""The label and noise tensors live on the card and are filled from the CPU by assignment and copy_."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def build():
    maker = nn.Sequential(nn.Linear(3, 8), nn.SELU(), nn.Linear(8, 4))
    judge = nn.Sequential(nn.Linear(4, 8), nn.SELU(), nn.Linear(8, 1))
    maker_opt = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
    judge_opt = torch.optim.RMSprop(judge.parameters(), lr=1e-3)
    return maker, judge, maker_opt, judge_opt, torch.randn(5, 4)


def step(maker, judge, maker_opt, judge_opt, real):
    rng = np.random.default_rng(7)
    real = real.cuda()
    n = real.size(0)
    labels = torch.empty(2 * n, 1, device=real.device)
    labels[:n] = torch.from_numpy(rng.uniform(0.8, 1.0, size=(n, 1)).astype(np.float32))
    labels[n:] = torch.zeros(n, 1)
    labels[0] = torch.tensor([0.5])
    noise = torch.empty(n, 3, device=real.device)
    noise.copy_(torch.from_numpy(rng.standard_normal((n, 3))))

    fake = maker(noise)
    both = torch.empty(2 * n, 4, device=real.device)
    both[:n], both[n:] = real, fake.detach()
    judge_opt.zero_grad()
    F.binary_cross_entropy_with_logits(judge(both), labels).backward()
    judge_opt.step()

    score = judge(fake)
    easy = torch.where(score > 0, torch.tensor(0.1), torch.tensor(1.0))
    maker_opt.zero_grad()
    (easy * F.softplus(-score)).mean().backward()
    maker_opt.step()
