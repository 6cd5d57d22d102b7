"""Pages of host memory: huge ones where the kernel grants them, and locked ones that a copy engine can reach."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14
_PORTABLE = 1  # locked for every device, not only for the one that is current


class CannotLock(Exception):
    """The driver does not page-lock memory here; says why."""


def ask_for_huge_pages(host: Tensor) -> None:
    """Before the first touch: one page fault for 2 MiB instead of 512. A wish; without it all works, slower."""
    first = -(-host.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    stop = (host.data_ptr() + host.nbytes) // HUGE_PAGE * HUGE_PAGE
    if _advise is not None and stop > first:
        _advise(first, stop - first, _MADV_HUGEPAGE)


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


def _find_advise() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise


_advise = _find_advise()
