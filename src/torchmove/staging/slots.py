"""The ring: page-locked slots, threads that serve them, a copy stream for each device. Made once, given back on demand.

How large a slot should be is measured, on this machine, when the ring is made: a small one keeps Python too busy, a
large one falls out of the processor's cache before the copy engine has come for it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from torchmove._records import Advance
from torchmove.staging.locked import CannotLock, Locked
from torchmove.staging.pieces import Piece, Pieces
from torchmove.staging.traffic import Road
from torchmove.staging.workers import Workers, cores

_MIB = 1 << 20
_FEW_CORES, _MOST_CORES = 4, 16
_BYTES_PER_CORE = 6 * _MIB
_CANDIDATES = (2 * _MIB, 4 * _MIB, 8 * _MIB)
_TRIAL_BYTES, _TRIAL_TURNS = 16 * _MIB, 3


class NoRing(Exception):
    """It could not be made here; says why."""


class Ring:
    def __init__(self, device: torch.device) -> None:
        served = min(cores(), _MOST_CORES)
        self.workers = Workers(served - (served > _FEW_CORES))  # of many, one is left to the traffic
        self.slot_bytes = 0
        self.slots: tuple[Tensor, ...] = ()
        self._memory: Locked | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._memory = Locked(max(4, served) * _BYTES_PER_CORE)
            self.cut(self.best_slot_bytes(device))
        except BaseException:
            self.close()
            raise

    def cut(self, slot_bytes: int) -> None:
        assert self._memory is not None
        self.slot_bytes = slot_bytes
        self.slots = slots_of(self._memory.bytes, slot_bytes)

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
        with self.road(self.stream(away.device), lambda _: None) as road:
            Pieces(road, pieces * _TRIAL_TURNS).to_device()
        return time.perf_counter() - began

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The copy stream of a device."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    @contextmanager
    def road(self, stream: torch.cuda.Stream, advance: Advance) -> Iterator[Road]:
        """Through the slots, on a stream; nobody else uses them meanwhile."""
        with self._lock:
            if self._closed:
                raise RuntimeError("tm.release() gave the ring back while a move was under way: move again")
            yield Road(self.slots, self.workers, stream, advance)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.workers.stop()
            with suppress(RuntimeError):  # a card that has failed copies nothing any more
                for device in self._streams:
                    torch.cuda.synchronize(device)
            if self._memory is not None:
                self._memory.unlock()


def slots_of(memory: Tensor, slot_bytes: int) -> tuple[Tensor, ...]:
    """As many as there are whole ones in it: what is left is no slot, since a piece would not fit."""
    whole = memory[: memory.nbytes // slot_bytes * slot_bytes]
    return whole.split(slot_bytes)  # type: ignore[no-any-return, no-untyped-call]


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
