"""The arena: host memory for parked states, of the exact size, on huge pages, kept for reuse; copies from and to it.

For a CUDA device it is pinned. Many threads touch its pages, which are then locked chunk by chunk: copies into a
locked chunk overlap with locking the next. A storage uses a span of it through a memoryview; while that is alive, the
span is not reused.

On CUDA, neighbors in memory are copied as one run: a state of thousands of storages is a few runs.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.internals.guards import HeldInterrupts
from torchmove.internals.host_memory import fresh_host_memory, touch_pages
from torchmove.moving.movers.copies import Advance
from torchmove.moving.movers.ring import CannotLock, lock, unlock
from torchmove.moving.movers.traffic import cores

LINE = 512  # spans begin at multiples of it, as allocations of torch's CUDA allocator do
CHUNK = 512 << 20  # the approximate size that is locked at once
_PAGE = 4096  # chunks begin at page boundaries
_TOUCHED_AT_ONCE = 16 << 20


class Extent:
    """One allocation of the arena, made for spans of given sizes. Its first `ready` bytes can be used.

    It is locked chunk by chunk. A CUDA copy must not cross from one locked chunk into the next, so no span does.
    """

    def __init__(self, sizes: Sequence[int], *, locked: bool) -> None:
        self.borders = _borders(sizes)
        nbytes = self.borders[-1]
        owner = fresh_host_memory(nbytes)
        self.address = owner.data_ptr()
        self.nbytes, self.locked = nbytes, locked
        self.memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.ready = 0 if locked else nbytes
        self.refused = ""  # why the driver locks no more of it
        self.free = [(start, stop - start) for start, stop in pairwise(self.borders)]  # offsets and sizes, in order
        self._touched = False
        locks: list[int] = []
        self._locks = locks
        # A span's memoryview keeps `memory` alive, and its finalizer keeps the owner until then.
        weakref.finalize(self.memory, _give_back, owner, locks, os.getpid())

    def make_ready(self, upto: int) -> None:
        """Touch and lock the pages up to an offset. Raises CannotLock."""
        if self.ready < upto and not self._touched:
            # All pages before the first lock: touching and locking at the same time is slower.
            at = range(0, self.nbytes, _TOUCHED_AT_ONCE)
            with ThreadPoolExecutor(cores()) as crew:
                list(crew.map(self._touch, at))
            self._touched = True
        while self.ready < upto:
            if self.refused:
                raise CannotLock(self.refused)
            stop = self.borders[bisect_right(self.borders, self.ready)]
            with HeldInterrupts() as interrupts, interrupts:  # a locked chunk is always in the list
                self._lock(self.ready, stop)

    def _touch(self, at: int) -> None:
        touch_pages(self.address + at, min(_TOUCHED_AT_ONCE, self.nbytes - at))

    def _lock(self, start: int, stop: int) -> None:
        try:
            lock(self.address + start, stop - start)
        except CannotLock as error:
            self.refused = str(error)
            raise
        self._locks.append(self.address + start)
        self.ready = stop

    def cut(self, nbytes: int) -> int | None:
        """Reserve that many bytes and return their offset; None if no free part is large enough."""
        for index, (offset, size) in enumerate(self.free):
            if size >= nbytes:
                self.free[index : index + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                return offset
        return None

    def put_back(self, parts: Iterable[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for start, size in sorted([*self.free, *parts]):
            if joined and sum(joined[-1]) == start and start not in self.borders:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((start, size))
        self.free = joined

    @property
    def is_empty(self) -> bool:
        return sum(size for _, size in self.free) == self.nbytes


def _give_back(_owner: Tensor, locks: list[int], process: int) -> None:
    """Unlock an extent. Takes the owner so that its memory stays allocated until then."""
    if process == os.getpid():  # a forked child has locked nothing
        for address in locks:
            unlock(address)


class Span(NamedTuple):
    """Some bytes of an extent."""

    extent: Extent
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.extent.address + self.offset

    def view(self) -> memoryview:
        """The bytes, for a storage to use."""
        return memoryview(self.extent.memory)[self.offset : self.offset + self.nbytes]


class Arena:
    """All extents of this process."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.extents: list[Extent] = []

    @property
    def nbytes(self) -> int:
        return sum(extent.nbytes for extent in self.extents)

    @property
    def free_bytes(self) -> int:
        return sum(size for extent in self.extents for _, size in extent.free)

    def take(self, sizes: Sequence[int], *, locked: bool, most: int | None = None) -> list[Span | None]:
        """A span for each size: from free memory, then from one new extent, as far as `most` bytes allow."""
        spans: list[Span | None] = [self._cut(nbytes, locked=locked) for nbytes in sizes]
        if None in spans:
            self.shrink()  # the free parts are too small: free the empty extents for a larger one
        left = None if most is None else most - self.nbytes
        missing: list[int] = []
        for index, nbytes in enumerate(sizes):
            if spans[index] is None and (left is None or rounded(nbytes) <= left):
                missing.append(index)
                left = None if left is None else left - rounded(nbytes)
        if missing:
            self.extents.append(Extent([sizes[index] for index in missing], locked=locked))
            for index in missing:
                spans[index] = self._cut(sizes[index], locked=locked, among=self.extents[-1:])
        return spans

    def _cut(self, nbytes: int, *, locked: bool, among: Sequence[Extent] | None = None) -> Span | None:
        for extent in self.extents if among is None else among:
            offset = extent.cut(rounded(nbytes)) if extent.locked == locked else None
            if offset is not None:
                return Span(extent, offset, nbytes)
        return None

    def give_back(self, spans: Iterable[Span]) -> None:
        parts: defaultdict[Extent, list[tuple[int, int]]] = defaultdict(list)
        for span in spans:
            parts[span.extent].append((span.offset, rounded(span.nbytes)))
        for extent, those in parts.items():
            extent.put_back(those)

    def shrink(self) -> None:
        """Free the extents that are empty."""
        self.extents = [extent for extent in self.extents if not extent.is_empty]


def _borders(sizes: Sequence[int]) -> list[int]:
    """The offsets where chunks begin, and the end of the last one, for spans of these sizes in this order."""
    borders, end = [0], 0
    for nbytes in map(rounded, sizes):
        if borders[-1] < end and end + nbytes - borders[-1] > CHUNK:
            end = rounded(end, _PAGE)
            borders.append(end)
        end += nbytes
    return [*borders, end]


def rounded(nbytes: int, unit: int = LINE) -> int:
    return -(-nbytes // unit) * unit


# ---------------------------------------------------------------- copies


def _end_of_memory(address: int) -> int:
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
            end = _end_of_memory(piece.address) if is_addressed(piece.device) else 0
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
        return _stream_of(device, "down" if self.to_host else "up")

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


def _stream_of(device: torch.device, task: str) -> torch.cuda.Stream:
    """The stream for a task on a device, created once."""
    if (device, task) not in _streams:
        _streams[device, task] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device, task]


_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
