"""Room on a CUDA device for what wakes: few large pieces of memory, cut by torch's allocator into the blocks.

To ask the driver for every block, and to give each back, takes long. A piece is asked
for, handed to torch's cache, and the blocks, which are asked for next, are cut from it, one behind the other. Each is
torch's own, with a storage of its own.
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

from torchmove.moving.batches import Advance
from torchmove.parking.arena import LINE, Extent, rounded

SMALL_BYTES = 1 << 20  # blocks up to this size torch keeps apart
_SEGMENT = 1 << 30
_STEP, _LEAST = 2 << 20, 10 << 20  # torch asks the driver for multiples of the one, from the other on

# What is left of a segment behind its last block is taken too: a stranger in it would keep all of it from the driver.
fillers: dict[torch.device, list[Tensor]] = {}


class Allocation(NamedTuple):
    """What a block needs; blocks of different groups do not share a segment."""

    nbytes: int
    group: int
    make: Callable[[], Tensor]


def allocations(wanted: Sequence[Allocation], device: torch.device) -> Iterator[Tensor]:
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


def _segments(wanted: Sequence[Allocation]) -> Iterator[list[Allocation]]:
    segment: list[Allocation] = []
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


def ignore_progress(_nbytes: int) -> object:
    """To be told how far it has come, until somebody wants to know."""


class Transfer(NamedTuple):
    """Bytes at an address of a device, and their place in the arena.

    `seen` shows them, where torch does not look at memory by its address.
    """

    device: torch.device
    address: int
    extent: Extent
    offset: int
    nbytes: int
    seen: Tensor | None

    def here(self) -> Tensor:
        """The bytes in the arena."""
        return torch.frombuffer(self.extent.memory, dtype=torch.uint8, offset=self.offset, count=self.nbytes)

    def there(self) -> Tensor:
        """The bytes on the device; on CUDA it does not own them."""
        if self.seen is not None:
            return self.seen
        return torch.as_tensor(_Raw(self.address, self.nbytes), device=self.device)

    def part(self, start: int, stop: int) -> Transfer:
        """Some of the bytes, counted from its first."""
        return self._replace(address=self.address + start, offset=self.offset + start, nbytes=stop - start)


class _Raw:
    """Memory of a CUDA device, as the array interface describes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        where = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1"}
        self.__cuda_array_interface__ = {**where, "version": 3}


def is_addressed(device: torch.device) -> bool:
    """Can memory be looked at there by its address?"""
    return device.type == "cuda"


def runs(pieces: Iterable[Transfer], *, to_be_read: bool) -> list[Transfer]:
    """Neighbours joined. What is between them is less than a line; to be written to, it must be nobody's."""
    joined: list[Transfer] = []
    end = 0
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and piece.address + piece.nbytes <= end and _are_neighbours(last, piece, to_be_read):
            joined[-1] = last._replace(nbytes=piece.address + piece.nbytes - last.address)
        else:
            joined.append(piece)
            end = end_of_memory(piece.address) if is_addressed(piece.device) else 0
    return joined


def _are_neighbours(one: Transfer, other: Transfer, to_be_read: bool) -> bool:
    return (
        one.extent is other.extent
        and one.device == other.device
        and other.address - one.address == other.offset - one.offset == rounded(one.nbytes)
        and one.address % LINE == 0
        # Torch's own allocator gives out whole lines; of another one that is not known.
        and (to_be_read or one.nbytes % LINE == 0 or torch.cuda.get_allocator_backend() == "native")
    )


class Lane:
    """One direction."""

    def __init__(self, *, down: bool) -> None:
        self.down = down
        self.sent: deque[tuple[Any, int]] = deque()  # and when it has arrived

    def carry(self, run: Transfer) -> None:
        """Send a run. On CUDA nothing is waited for but the locking of memory. Raises CannotLock."""
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
        """Wait for all that was sent."""
        while self.sent:
            arrival, nbytes = self.sent[0]
            if arrival is not None:
                arrival.synchronize()
            self.sent.popleft()
            advance(nbytes)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        return stream_of(device, "down" if self.down else "up")

    def copy(self, part: Transfer) -> None:
        to, come_from = (part.here(), part.there()) if self.down else (part.there(), part.here())
        to.copy_(come_from, non_blocking=True)


def _within_chunks(run: Transfer) -> Iterator[Transfer]:
    """The run, cut where one chunk of the arena ends and the next begins."""
    start, stop, borders = run.offset, run.offset + run.nbytes, run.extent.borders
    while start < stop:
        end = min(stop, borders[bisect_right(borders, start)])
        yield run if (start, end) == (run.offset, stop) else run.part(start - run.offset, end - run.offset)
        start = end


def stream_of(device: torch.device, task: str) -> torch.cuda.Stream:
    """The one for a task on a device, made once."""
    if (device, task) not in _streams:
        _streams[device, task] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device, task]


_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
