"""Locked pages of host memory, which a copy engine can reach."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from torchmove.internals.host_memory import fresh_host_memory
from torchmove.moving.batches import Advance
from torchmove.moving.movers.traffic import Channel, Piece, Pieces
from torchmove.moving.movers.workers import Workers, cores

_PORTABLE = 1  # locked for every device, not only for the one that is current


class CannotLock(Exception):
    """The driver does not page-lock memory here; says why."""


class Locked:
    """Host memory that is page-locked until it is let go."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = fresh_host_memory(nbytes).zero_()
        self._is_locked = False
        lock(self.bytes.data_ptr(), nbytes)
        self._is_locked = True

    def unlock(self) -> None:
        """Before the memory is given back, and once."""
        if self._is_locked:
            self._is_locked = False
            unlock(self.bytes.data_ptr())


def lock(address: int, nbytes: int) -> None:
    """Page-lock memory that stays where it is until it is unlocked. Raises CannotLock."""
    error = int(_runtime().cudaHostRegister(address, nbytes, _PORTABLE))
    if error != 0:
        _clear_error()
        raise CannotLock(f"the driver refused to page-lock {nbytes >> 20} MiB (error {error})")


def unlock(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _clear_error() -> None:
    """A failed call leaves its error behind for the next one, which is made here."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)


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
    def road(self, stream: torch.cuda.Stream, advance: Advance) -> Iterator[Channel]:
        """Through the slots, on a stream; nobody else uses them meanwhile."""
        with self._lock:
            if self._closed:
                raise RuntimeError("tm.release() gave the ring back while a move was under way: move again")
            yield Channel(self.slots, self.workers, stream, advance)

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


def shared_ring(device: torch.device) -> Ring:
    """The ring of this process, made if there is none. Raises NoRing."""
    global _ring
    with _making:
        if _ring is None:
            try:
                _ring = Ring(device)
            except (CannotLock, RuntimeError, MemoryError) as error:
                raise NoRing(f"no ring of page-locked memory: {str(error).splitlines()[0]}") from error
        return _ring


def has_ring() -> bool:
    return _ring is not None


def release_ring() -> None:
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


atexit.register(release_ring)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
