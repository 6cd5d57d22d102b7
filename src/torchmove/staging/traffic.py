"""The ring: page-locked slots, threads that serve them, a copy stream for each device. Made once, given back on demand.

How large a slot should be is measured, on this machine, when the ring is made: a small one keeps Python too busy, a
large one falls out of the processor's cache before the copy engine has come for it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove._interrupts import HeldInterrupts
from torchmove._records import Advance
from torchmove._storage import plain_torch
from torchmove.staging.locked import CannotLock, Locked
from torchmove.staging.pieces import Piece
from torchmove.staging.workers import Done, Workers, cores

_MIB = 1 << 20
_MOST_WORKERS = 16
_BYTES_PER_WORKER = 6 * _MIB
_CANDIDATES = (2 * _MIB, 4 * _MIB, 8 * _MIB)
_TRIAL_BYTES, _TRIAL_TURNS = 16 * _MIB, 3


class Slot(NamedTuple):
    bytes: Tensor
    event: torch.cuda.Event


class Cancelled(Exception):
    """The one who waited for the traffic waits no longer."""


class NoRing(Exception):
    """It could not be made here; says why."""


class Ring:
    def __init__(self, device: torch.device) -> None:
        self.workers = Workers(min(cores(), _MOST_WORKERS))
        self.slot_bytes = 0
        self.slots: tuple[Tensor, ...] = ()
        self._memory: Locked | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._memory = Locked(max(4, len(self.workers)) * _BYTES_PER_WORKER)
            self.cut(self.best_slot_bytes(device))
        except BaseException:
            self.close()
            raise

    def cut(self, slot_bytes: int) -> None:
        assert self._memory is not None
        self.slot_bytes = slot_bytes
        self.slots = self._memory.bytes.split(slot_bytes)  # type: ignore[no-untyped-call]

    def best_slot_bytes(self, device: torch.device) -> int:
        """By trial: which size carries some bytes to the device in the least time?"""
        host = torch.ones(_TRIAL_BYTES, dtype=torch.uint8, device="cpu")
        away = torch.empty(_TRIAL_BYTES, dtype=torch.uint8, device=device)
        return min(_CANDIDATES, key=lambda slot_bytes: self.try_out(host, away, slot_bytes))

    def try_out(self, host: Tensor, away: Tensor, slot_bytes: int) -> float:
        self.cut(slot_bytes)
        parts = away.split(slot_bytes)  # type: ignore[no-untyped-call]
        pieces = [Piece(host, host.data_ptr() + at * slot_bytes, part, part.nbytes) for at, part in enumerate(parts)]
        began = time.perf_counter()
        self.to_device(pieces * _TRIAL_TURNS, self.stream(away.device), lambda _: None)
        return time.perf_counter() - began

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The copy stream of a device."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    def to_device(self, pieces: Iterable[Piece], stream: torch.cuda.Stream, advance: Advance) -> None:
        """Carry pieces to the device of a stream, on it."""
        traffic = _Traffic(self, pieces, stream, advance)
        self._run(traffic.to_device, traffic)

    def to_host(self, pieces: Iterable[Piece], stream: torch.cuda.Stream, advance: Advance) -> None:
        """Carry pieces away from the device of a stream, on it."""
        traffic = _Traffic(self, pieces, stream, advance)
        self._run(traffic.to_host, traffic)

    def _run(self, work: Callable[[], None], traffic: _Traffic) -> None:
        with self.held():
            _drive(work, traffic)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else uses the slots meanwhile."""
        with self._lock:
            if self._closed:
                raise RuntimeError("tm.release() gave the ring back while a move was under way: move again")
            yield

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.workers.stop()
            with suppress(RuntimeError):  # a card that has failed copies nothing any more
                for device in self._streams:
                    torch.cuda.synchronize(device)
            if self._memory is not None:
                self._memory.unlock()


class _Traffic:
    """Pieces on their way through the ring in one direction."""

    def __init__(self, ring: Ring, pieces: Iterable[Piece], stream: torch.cuda.Stream, advance: Advance) -> None:
        self.ring, self.pieces, self.stream, self.advance = ring, iter(pieces), stream, advance
        self.free = [Slot(part, torch.cuda.Event()) for part in ring.slots]  # type: ignore[no-untyped-call]
        self.on_link: deque[tuple[Piece, Slot]] = deque()
        self.at_work: dict[int, tuple[Piece, Slot]] = {}  # with the workers, by ticket
        self.done: Done = SimpleQueue()
        self.cancelled = False

    def to_device(self) -> None:
        most_on_link = max(1, len(self.ring.slots) - len(self.ring.workers))
        while True:
            for piece in self.next_pieces():
                slot = self.free.pop()
                self.give(piece.host_to_slot, piece, slot)
            if self.at_work:
                piece, slot = self.take()
                piece.slot_to_device(slot.bytes)
                self.send(piece, slot)
            elif not self.on_link:
                return
            while self.on_link and (not self.at_work or len(self.on_link) > most_on_link or self.has_arrived()):
                piece, slot = self.receive()
                self.free.append(slot)
                self.advance(piece.nbytes)

    def to_host(self) -> None:
        while True:
            for piece in self.next_pieces():
                slot = self.free.pop()
                piece.device_to_slot(slot.bytes)
                self.send(piece, slot)
            while self.on_link and (len(self.at_work) < len(self.ring.workers) or self.has_arrived()):
                piece, slot = self.receive()
                self.give(piece.slot_to_host, piece, slot)
            if not self.at_work:
                return
            piece, slot = self.take()
            self.free.append(slot)
            self.advance(piece.nbytes)

    def next_pieces(self) -> Iterator[Piece]:
        """As many as there are free slots."""
        while self.free and (piece := next(self.pieces, None)) is not None:
            if self.cancelled:
                raise Cancelled
            yield piece

    def give(self, task: Callable[[Tensor], None], piece: Piece, slot: Slot) -> None:
        ticket = id(slot)
        self.at_work[ticket] = (piece, slot)
        self.ring.workers.give(partial(task, slot.bytes), ticket, self.done)

    def take(self) -> tuple[Piece, Slot]:
        ticket, error = self.done.get()
        taken = self.at_work.pop(ticket)
        if error is not None:
            raise error
        return taken

    def send(self, piece: Piece, slot: Slot) -> None:
        slot.event.record(self.stream)
        self.on_link.append((piece, slot))

    def has_arrived(self) -> bool:
        return bool(self.on_link[0][1].event.query())  # type: ignore[no-untyped-call]

    def receive(self) -> tuple[Piece, Slot]:
        piece, slot = self.on_link.popleft()
        slot.event.synchronize()
        return piece, slot

    def settle(self) -> None:
        """Whatever happened: nobody writes into a slot or out of one any more."""
        while self.at_work:
            self.at_work.pop(self.done.get()[0])
        self.stream.synchronize()


def _drive(work: Callable[[], None], traffic: _Traffic) -> None:
    """Run the traffic in a thread of its own: a Ctrl-C meets the caller, who waits, and never the traffic."""
    errors: list[BaseException] = []
    running = threading.Lock()
    running.acquire()
    job = (work, traffic, errors, running)
    thread = threading.Thread(target=_work, args=job, name="torchmove traffic", daemon=True)
    try:
        with HeldInterrupts():
            thread.start()
        running.acquire()
    except BaseException:
        traffic.cancelled = True
        raise
    finally:
        # Before Python 3.13 an interrupted join takes the thread for ended.
        with HeldInterrupts():
            if thread.ident is not None:
                thread.join()
            del thread  # Python code runs as it goes, in which a Ctrl-C would be dropped
        if traffic.cancelled:
            errors.clear()  # an error keeps its frames, and they the list with the error
    if errors:
        raise errors.pop()


# No closure: the error keeps its frames, a frame its function, and that would keep what it closes over.
def _work(work: Callable[[], None], traffic: _Traffic, errors: list[BaseException], running: threading.Lock) -> None:
    try:
        with plain_torch(), torch.cuda.device(traffic.stream.device), torch.cuda.stream(traffic.stream):
            try:
                work()
            finally:
                traffic.settle()
    except BaseException as error:
        errors.append(error)
    finally:
        running.release()


# ---------------------------------------------------------------- the one of this process

_ring: Ring | None = None
_making = threading.Lock()


def ring(device: torch.device) -> Ring:
    """The ring of this process, made if there is none. Raises NoRing."""
    global _ring
    with _making:
        if _ring is None:
            try:
                _ring = Ring(device)
            except (CannotLock, RuntimeError, MemoryError) as error:
                raise NoRing(f"no ring of page-locked memory: {str(error).splitlines()[0]}") from error
        return _ring


def is_ready() -> bool:
    return _ring is not None


def release() -> None:
    """Give back what moving keeps for the next time: page-locked memory and threads. A later move makes them anew."""
    global _ring
    with _making:
        if _ring is not None:
            _ring.close()
            _ring = None


def _forget() -> None:
    """In a forked child: neither the threads nor the locked pages are its own."""
    global _ring, _making
    _ring, _making = None, threading.Lock()


atexit.register(release)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
