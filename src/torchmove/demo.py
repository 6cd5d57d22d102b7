"""A model after one training step. `Scaled.table` is not a buffer, and model.to() does not move the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import torchmove as tm


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.table = torch.linspace(0, 1, 64)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * self.table


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    device = next(model.parameters()).device
    loss = model(batch.to(device)).square().mean()
    loss.backward()
    optimizer.step()


def build() -> dict[str, Any]:
    model = nn.Sequential(Scaled(), nn.ReLU(), Scaled())
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 64)
    train_step(model, optimizer, batch)
    return {"step": train_step, "model": model, "optimizer": optimizer, "batch": batch}


if __name__ == "__main__":
    built = build()
    print(tm.move(built["model"], built["optimizer"], to="auto"))
    train_step(built["model"], built["optimizer"], built["batch"])
    print("the next training step ran there")
