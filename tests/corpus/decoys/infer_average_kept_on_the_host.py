"""The average of the weights is in host memory on purpose; weights come to it, and it is copied into a second model."""

import torch
import torch.nn.functional as F
from torch import nn


def net():
    return nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))


def build():
    model, for_eval = net(), net().requires_grad_(False).eval()
    average = {name: value.detach().clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, for_eval, average, optimizer, torch.randn(4, 1, 8), torch.tensor([0, 1, 1, 0])


def step(model, for_eval, average, optimizer, wave, label):
    wave = wave.to("cuda")
    loss = F.cross_entropy(model(wave), label.to(wave.device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                average[name].mul_(0.99).add_(value.cpu(), alpha=0.01)
            else:
                average[name].copy_(value)
        for name, value in for_eval.state_dict().items():
            value.copy_(average[name])
        drift = sum((average[name] - p.cpu()).square().sum() for name, p in model.named_parameters())
    with torch.inference_mode():
        guess = for_eval(wave).argmax(dim=1).cpu()
        accuracy = (guess == label).float().mean().item()
    print(f"accuracy {accuracy:.2f} drift {drift.item():.2e}")
