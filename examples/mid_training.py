"""Move a model and its optimizer in the middle of a training, and continue the training."""

import torch
from second_device import second_device
from torch import nn

import torchmove as tm

OPTIMIZERS = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 8, generator=generator).to(device)
    targets = inputs.sum(dim=1, keepdim=True).sin()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    device = second_device()
    for name, make_optimizer in OPTIMIZERS.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = make_optimizer(model.parameters())
        print(f"{name}, 50 steps on the cpu: loss {train(model, optimizer, 50):.6f}\n")
        print(f"{tm.move(model, optimizer, to=device)}\n")
        print(f"{name}, 50 more on {device}: loss {train(model, optimizer, 50):.6f}")
        tm.move(model, optimizer, to="cpu")
        print(f"{name}, 50 more on the cpu: loss {train(model, optimizer, 50):.6f}\n")


if __name__ == "__main__":
    main()
