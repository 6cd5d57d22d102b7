"""How many threads compute. Autograd has a thread of its own for each device, and each counts its helpers for itself,
from when it began; the bits of a sum depend on that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many here, and in autograd's threads for the twin devices."""
    before = torch.get_num_threads()
    _set(count)
    yield
    _set(before)


def _set(count: int) -> None:
    torch.set_num_threads(count)
    for index in range(torch.twin.device_count() if hasattr(torch, "twin") else 0):
        one = torch.ones(1, device=f"twin:{index}", requires_grad=True)
        _SetThreads.apply(one).sum().backward()


class _SetThreads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.threads = torch.get_num_threads()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        torch.set_num_threads(ctx.threads)
        return gradient
