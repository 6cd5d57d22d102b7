"""Pages of host memory: request huge pages, fault them in at once, and release pages that are not needed."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
_DONTNEED, _HUGEPAGE, _POPULATE = 4, 14, 23


def fresh_host_memory(nbytes: int) -> Tensor:
    """Untouched bytes of host memory that start at a huge page boundary."""
    room = torch.empty(nbytes + HUGE_PAGE, dtype=torch.uint8, device="cpu")
    ask_for_huge_pages(room)
    return room[-room.data_ptr() % HUGE_PAGE :][:nbytes]


def ask_for_huge_pages(host: Tensor) -> None:
    """Advise the kernel to use huge pages, before the first touch: one page fault for 2 MiB instead of 512."""
    _advise(host, HUGE_PAGE, _HUGEPAGE)


def drop_pages(host: Tensor) -> None:
    """Release the pages of a tensor whose bytes will not be read again; its memory stays mapped."""
    _advise(host, mmap.PAGESIZE, _DONTNEED)


def touch_pages(address: int, nbytes: int) -> None:
    """Fault in all pages at once instead of one by one. Releases the GIL meanwhile."""
    if _madvise is None or _madvise(address, nbytes, _POPULATE) != 0:  # not Linux, or older than 5.14
        ctypes.memset(address, 0, nbytes)


def _advise(host: Tensor, page: int, advice: int) -> None:
    first = -(-host.data_ptr() // page) * page
    stop = (host.data_ptr() + host.nbytes) // page * page
    if _madvise is not None and stop > first:
        _madvise(first, stop - first, advice)


def _find_madvise() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise


_madvise = _find_madvise()
