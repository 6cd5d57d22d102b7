"""The arena: host memory for parked states, of the exact size, on huge pages, kept for reuse.

For a CUDA device it is pinned. Many threads touch its pages, which are then locked chunk by chunk: copies into a
locked chunk overlap with locking the next. A storage uses a span of it through a memoryview; while that is alive, the
span is not reused.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from torchmove.internals.guards import HeldInterrupts
from torchmove.internals.host_memory import fresh_host_memory, touch_pages
from torchmove.moving.movers.ring import CannotLock, lock, unlock
from torchmove.moving.movers.workers import cores

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
            end = -(-end // _PAGE) * _PAGE
            borders.append(end)
        end += nbytes
    return [*borders, end]


def rounded(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
