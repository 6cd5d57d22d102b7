"""Locked pages of host memory, which a copy engine can reach."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from torchmove._pages import HUGE_PAGE, ask_for_huge_pages

_PORTABLE = 1  # locked for every device, not only for the one that is current


class CannotLock(Exception):
    """The driver does not page-lock memory here; says why."""


class Locked:
    """Host memory that is page-locked until it is let go."""

    def __init__(self, nbytes: int) -> None:
        owner = torch.empty(nbytes + HUGE_PAGE, dtype=torch.uint8, device="cpu")
        ask_for_huge_pages(owner)
        start = -owner.data_ptr() % HUGE_PAGE
        self.bytes = owner[start : start + nbytes].zero_()
        self._is_locked = False
        _lock(self.bytes)
        self._is_locked = True

    def unlock(self) -> None:
        """Before the memory is given back, and once."""
        if self._is_locked:
            self._is_locked = False
            _runtime().cudaHostUnregister(self.bytes.data_ptr())


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _lock(memory: Tensor) -> None:
    error = _runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)
    if int(error) != 0:
        _clear_error()
        raise CannotLock(f"the driver refused to page-lock {memory.nbytes >> 20} MiB (error {int(error)})")


def _clear_error() -> None:
    """A failed call leaves its error behind for the next one, which is made here."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)
