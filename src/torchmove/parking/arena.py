"""The arena: host memory where states are parked. Exactly as much as they need, on huge pages, and kept for the next
time.

For a CUDA device it is page-locked, a chunk after the other: while one is locked, the pages of the next are taken by
many threads, and what is ready is filled already. A span of it is lent to a storage as a memoryview; while that
lives, somebody looks at the span, and it is nobody else's.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove import _pages
from torchmove.staging import CannotLock, cores, lock, unlock

LINE = 512  # spans begin at multiples of it, as torch's blocks of CUDA memory do
CHUNK = 512 << 20  # what is locked at once; a copy must not cross from one into the next
_TOUCHED_AT_ONCE = 16 << 20


class Extent:
    """One piece of the arena. The first `ready` bytes of it can be used."""

    def __init__(self, nbytes: int, *, locked: bool) -> None:
        owner = torch.empty(nbytes + _pages.HUGE_PAGE, dtype=torch.uint8, device="cpu")
        _pages.ask_for_huge_pages(owner)
        self.address = owner.data_ptr() + -owner.data_ptr() % _pages.HUGE_PAGE
        self.nbytes, self.locked = nbytes, locked
        self.memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.ready = 0 if locked else nbytes
        self.refused = ""  # why no more of it can be made ready
        self.free: list[tuple[int, int]] = [(0, nbytes)]  # offsets and sizes, in order
        self._crew: _Crew | None = None
        locks: list[int] = []
        self._locks = locks
        # Whoever looks at a span holds the memory, and that the owner: until nobody does.
        weakref.finalize(self.memory, _give_back, owner, locks, os.getpid())

    def make_ready(self, upto: int) -> None:
        """Take and lock the pages up to there. Raises CannotLock."""
        if self.ready >= upto:
            return
        if self.refused:
            raise CannotLock(self.refused)
        crew = self._crew = self._crew or _Crew(self.address, self.ready, self.nbytes, self._locks)
        try:
            while self.ready < upto:
                self.ready = crew.next()
        except BaseException as error:
            self.dismiss()
            self.refused = str(error) if isinstance(error, CannotLock) else ""
            raise
        if self.ready == self.nbytes:
            self.dismiss()

    def dismiss(self) -> None:
        """No more threads, until more is to be made ready."""
        if self._crew is not None:
            self.ready = self._crew.stop()
            self._crew = None

    def cut(self, nbytes: int) -> int | None:
        """The offset of that many bytes, from now on taken; None if there is no such room."""
        for index, (offset, size) in enumerate(self.free):
            if size >= nbytes:
                self.free[index : index + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                return offset
        return None

    def put_back(self, parts: Iterable[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for start, size in sorted([*self.free, *parts]):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((start, size))
        self.free = joined

    @property
    def is_empty(self) -> bool:
        return self.free == [(0, self.nbytes)]


def _give_back(_owner: Tensor, locks: list[int], process: int) -> None:
    """The owner comes along so that its memory is there until it is unlocked."""
    if process == os.getpid():  # a forked child has neither locked anything nor a device to ask
        for address in locks:
            unlock(address)


class _Crew:
    """Threads that take pages, and one that locks them, a chunk behind."""

    def __init__(self, address: int, start: int, stop: int, locks: list[int]) -> None:
        self.address, self.locks = address, locks
        self.chunks = deque((at, min(at + CHUNK, stop)) for at in range(start, stop, CHUNK))
        self.locking: deque[tuple[int, Future[None]]] = deque()
        self.ready = start
        self.touchers, self.locker = ThreadPoolExecutor(cores()), ThreadPoolExecutor(1)

    def next(self) -> int:
        """How far it is ready, one chunk further."""
        while self.chunks and len(self.locking) < 2:
            start, stop = self.chunks.popleft()
            at = range(start, stop, _TOUCHED_AT_ONCE)
            list(self.touchers.map(self.touch, at, repeat(stop)))
            self.locking.append((stop, self.locker.submit(self.lock, start, stop)))
        stop, future = self.locking[0]  # where it is found if this fails
        future.result()
        self.locking.popleft()
        self.ready = stop
        return stop

    def touch(self, at: int, stop: int) -> None:
        _pages.touch(self.address + at, min(_TOUCHED_AT_ONCE, stop - at))

    def lock(self, start: int, stop: int) -> None:
        lock(self.address + start, stop - start)
        self.locks.append(self.address + start)

    def stop(self) -> int:
        self.touchers.shutdown(cancel_futures=True)
        self.locker.shutdown()
        for stop, future in self.locking:  # one that failed ends it: what is ready has no gap
            if future.exception() is not None:
                break
            self.ready = stop
        return self.ready


class Span(NamedTuple):
    """Some bytes of an extent."""

    extent: Extent
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.extent.address + self.offset

    def lend(self) -> memoryview:
        """The bytes, for a storage to look at."""
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
        """A span for each size: of what is there, then of one new extent, as far as `most` bytes allow."""
        spans: list[Span | None] = [self._cut(nbytes, locked=locked) for nbytes in sizes]
        left = None if most is None else most - self.nbytes
        missing: list[int] = []
        for index, nbytes in enumerate(sizes):
            if spans[index] is None and (left is None or rounded(nbytes) <= left):
                missing.append(index)
                left = None if left is None else left - rounded(nbytes)
        if missing:
            self.extents.append(Extent(sum(rounded(sizes[index]) for index in missing), locked=locked))
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
        """Let go of the extents in which nothing is."""
        for extent in self.extents:
            if extent.is_empty:
                extent.dismiss()
        self.extents = [extent for extent in self.extents if not extent.is_empty]


def rounded(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
