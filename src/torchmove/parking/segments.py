"""Room on a CUDA device for what wakes: few large pieces of memory, cut by torch's allocator into the blocks.

To ask the driver for every block, and to give each back, takes long. A piece is asked
for, handed to torch's cache, and the blocks, which are asked for next, are cut from it, one behind the other. Each is
torch's own, with a storage of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.parking.arena import rounded

SMALL_BYTES = 1 << 20  # blocks up to this size torch keeps apart
_SEGMENT = 1 << 30
_STEP, _LEAST = 2 << 20, 10 << 20  # torch asks the driver for multiples of the one, from the other on

# What is left of a segment behind its last block is taken too: a stranger in it would keep all of it from the driver.
fillers: dict[torch.device, list[Tensor]] = {}


class Room(NamedTuple):
    """What a block needs; blocks of different groups do not share a segment."""

    nbytes: int
    group: int
    make: Callable[[], Tensor]


def rooms(wanted: Sequence[Room], device: torch.device) -> Iterator[Tensor]:
    """Make them, in order."""
    for segment in _segments(wanted):
        nbytes = sum(rounded(room.nbytes) for room in segment if room.nbytes > SMALL_BYTES)
        if nbytes:
            with suppress(torch.OutOfMemoryError):  # not in one piece; what is in torch's cache may do
                torch.empty(nbytes, dtype=torch.uint8, device=device)  # and let go of at once
        for room in segment:
            yield room.make()
        left = -nbytes % _STEP
        if nbytes >= _LEAST and left > SMALL_BYTES:
            fillers.setdefault(device, []).append(torch.empty(left, dtype=torch.uint8, device=device))


def _segments(wanted: Sequence[Room]) -> Iterator[list[Room]]:
    segment: list[Room] = []
    nbytes = 0
    for room in wanted:
        if segment and (segment[-1].group != room.group or nbytes + room.nbytes > _SEGMENT):
            yield segment
            segment, nbytes = [], 0
        segment.append(room)
        nbytes += room.nbytes
    if segment:
        yield segment


def end_of_memory(address: int) -> int:
    """Where the piece of memory ends that the driver gave out at once: no copy may go beyond. 0: it does not say."""
    start, nbytes, ask = ctypes.c_uint64(), ctypes.c_size_t(), _driver_call()
    if ask is None or ask(ctypes.byref(start), ctypes.byref(nbytes), ctypes.c_uint64(address)) != 0:
        return 0
    return start.value + nbytes.value


@cache
def _driver_call() -> Callable[..., int] | None:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError, AttributeError):
            return ctypes.CDLL(name).cuMemGetAddressRange_v2
    return None
