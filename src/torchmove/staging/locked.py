"""Locked pages of host memory, which a copy engine can reach."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from torchmove import _pages

_PORTABLE = 1  # locked for every device, not only for the one that is current


class CannotLock(Exception):
    """The driver does not page-lock memory here; says why."""


class Locked:
    """Host memory that is page-locked until it is let go."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = _pages.fresh(nbytes).zero_()
        self._is_locked = False
        lock(self.bytes.data_ptr(), nbytes)
        self._is_locked = True

    def unlock(self) -> None:
        """Before the memory is given back, and once."""
        if self._is_locked:
            self._is_locked = False
            unlock(self.bytes.data_ptr())


def lock(address: int, nbytes: int) -> None:
    """Page-lock memory that stays where it is until it is unlocked. Raises CannotLock."""
    error = int(_runtime().cudaHostRegister(address, nbytes, _PORTABLE))
    if error != 0:
        _clear_error()
        raise CannotLock(f"the driver refused to page-lock {nbytes >> 20} MiB (error {error})")


def unlock(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _clear_error() -> None:
    """A failed call leaves its error behind for the next one, which is made here."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)
