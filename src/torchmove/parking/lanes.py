"""Copies between the arena and a device, and device memory for what wakes.

On CUDA, neighbors in memory are copied, and fingerprinted, as one run: a state of thousands of storages is a few runs.
For what wakes, large pieces of memory are allocated and returned to torch's cache; the storages, which are allocated
next, are cut from them. Asking the driver for each storage would take much longer.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.moving.movers.copies import Advance
from torchmove.parking.arena import LINE, Extent, rounded

SMALL_BYTES = 1 << 20  # torch's allocator keeps allocations up to this size in separate segments
_SEGMENT = 1 << 30
_STEP, _LEAST = 2 << 20, 10 << 20  # from _LEAST on, torch's allocator asks the driver for multiples of _STEP

# The rest of each segment is allocated too: another tensor in it would keep the segment from being freed.
fillers: dict[torch.device, list[Tensor]] = {}


class Allocation(NamedTuple):
    """The device memory one storage needs; storages of different groups do not share a segment."""

    nbytes: int
    group: int
    make: Callable[[], Tensor]


def allocations(wanted: Sequence[Allocation], device: torch.device) -> Iterator[Tensor]:
    """Allocate them, in order."""
    for segment in _segments(wanted):
        nbytes = sum(rounded(each.nbytes) for each in segment if each.nbytes > SMALL_BYTES)
        if nbytes:
            with suppress(torch.OutOfMemoryError):  # no contiguous memory; torch's cache may have enough
                torch.empty(nbytes, dtype=torch.uint8, device=device)  # freed at once, into torch's cache
        for each in segment:
            yield each.make()
        left = -nbytes % _STEP
        if nbytes >= _LEAST and left > SMALL_BYTES:
            fillers.setdefault(device, []).append(torch.empty(left, dtype=torch.uint8, device=device))


def _segments(wanted: Sequence[Allocation]) -> Iterator[list[Allocation]]:
    segment: list[Allocation] = []
    nbytes = 0
    for each in wanted:
        if segment and (segment[-1].group != each.group or nbytes + each.nbytes > _SEGMENT):
            yield segment
            segment, nbytes = [], 0
        segment.append(each)
        nbytes += each.nbytes
    if segment:
        yield segment


def end_of_memory(address: int) -> int:
    """The end of the driver allocation that contains an address, which no copy may cross; 0 if it is unknown."""
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


def ignore_progress(_nbytes: int) -> object:
    """The progress callback of a mover before `copy` sets one."""


class Transfer(NamedTuple):
    """Bytes at an address of a device, and their place in the arena.

    `seen` is a tensor on them, for devices where torch cannot use memory by its address.
    """

    device: torch.device
    address: int
    extent: Extent
    offset: int
    nbytes: int
    seen: Tensor | None

    def on_host(self) -> Tensor:
        """The bytes in the arena."""
        return torch.frombuffer(self.extent.memory, dtype=torch.uint8, offset=self.offset, count=self.nbytes)

    def on_device(self) -> Tensor:
        """The bytes on the device; on CUDA the tensor does not own them."""
        if self.seen is not None:
            return self.seen
        return torch.as_tensor(_Raw(self.address, self.nbytes), device=self.device)

    def part(self, start: int, stop: int) -> Transfer:
        """Some of the bytes, from `start` to `stop`."""
        return self._replace(address=self.address + start, offset=self.offset + start, nbytes=stop - start)


class _Raw:
    """Memory of a CUDA device, in the form of __cuda_array_interface__."""

    def __init__(self, address: int, nbytes: int) -> None:
        where = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1"}
        self.__cuda_array_interface__ = {**where, "version": 3}


def is_addressed(device: torch.device) -> bool:
    """Whether torch can use memory of the device by its address."""
    return device.type == "cuda"


def runs(pieces: Iterable[Transfer], *, to_be_read: bool) -> list[Transfer]:
    """Join adjacent transfers. The gap between them is less than a line; a write into it must be safe."""
    joined: list[Transfer] = []
    end = 0
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and piece.address + piece.nbytes <= end and _are_neighbors(last, piece, to_be_read):
            joined[-1] = last._replace(nbytes=piece.address + piece.nbytes - last.address)
        else:
            joined.append(piece)
            end = end_of_memory(piece.address) if is_addressed(piece.device) else 0
    return joined


def _are_neighbors(one: Transfer, other: Transfer, to_be_read: bool) -> bool:
    return (
        one.extent is other.extent
        and one.device == other.device
        and other.address - one.address == other.offset - one.offset == rounded(one.nbytes)
        and one.address % LINE == 0
        # torch's native allocator gives out whole lines; other allocators may not.
        and (to_be_read or one.nbytes % LINE == 0 or torch.cuda.get_allocator_backend() == "native")
    )


class Lane:
    """Copies between the arena and devices, in one direction."""

    def __init__(self, *, to_host: bool) -> None:
        self.to_host = to_host
        self.sent: deque[tuple[Any, int]] = deque()  # events of arrival, and bytes

    def send(self, run: Transfer) -> None:
        """Start to copy a run. On CUDA this waits only for memory to be locked. Raises CannotLock."""
        for part in _within_chunks(run):
            part.extent.make_ready(part.offset + part.nbytes)
            arrival = None
            if is_addressed(part.device):
                stream, arrival = self.stream(part.device), torch.cuda.Event()  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    self.copy(part)
                    arrival.record(stream)
            else:
                self.copy(part)
            self.sent.append((arrival, part.nbytes))

    def finish(self, advance: Advance) -> None:
        """Wait for all copies."""
        while self.sent:
            arrival, nbytes = self.sent[0]
            if arrival is not None:
                arrival.synchronize()
            self.sent.popleft()
            advance(nbytes)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        return stream_of(device, "down" if self.to_host else "up")

    def copy(self, part: Transfer) -> None:
        to, come_from = (part.on_host(), part.on_device()) if self.to_host else (part.on_device(), part.on_host())
        to.copy_(come_from, non_blocking=True)


def _within_chunks(run: Transfer) -> Iterator[Transfer]:
    """The run, split at the borders of the arena's chunks."""
    start, stop, borders = run.offset, run.offset + run.nbytes, run.extent.borders
    while start < stop:
        end = min(stop, borders[bisect_right(borders, start)])
        yield run if (start, end) == (run.offset, stop) else run.part(start - run.offset, end - run.offset)
        start = end


def stream_of(device: torch.device, task: str) -> torch.cuda.Stream:
    """The stream for a task on a device, created once."""
    if (device, task) not in _streams:
        _streams[device, task] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device, task]


_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
