"""The ring: page-locked slots, threads that serve them, and a copy stream for each device. Made once per process.

The best size of a slot is measured when the ring is made: a small slot keeps Python too busy, a large one has left the
processor's cache before the copy engine reads it.
"""

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
from torchmove.moving.movers.copies import Advance
from torchmove.moving.movers.traffic import Channel, Piece, Pieces, Workers, cores

_PORTABLE = 1  # cudaHostRegisterPortable: locked for every device, not only the current one


class CannotLock(Exception):
    """The driver refuses to page-lock memory; the message says why."""


class Locked:
    """Host memory that is page-locked until `unlock`."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = fresh_host_memory(nbytes).zero_()
        self._is_locked = False
        lock(self.bytes.data_ptr(), nbytes)
        self._is_locked = True

    def unlock(self) -> None:
        """Unlock once, before the memory is freed."""
        if self._is_locked:
            self._is_locked = False
            unlock(self.bytes.data_ptr())


def lock(address: int, nbytes: int) -> None:
    """Page-lock memory, which must stay allocated until it is unlocked. Raises CannotLock."""
    error = int(_runtime().cudaHostRegister(address, nbytes, _PORTABLE))
    if error != 0:
        _clear_error()
        raise CannotLock(f"the driver refused to page-lock {nbytes >> 20} MiB (error {error})")


def unlock(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _clear_error() -> None:
    """Clear CUDA's sticky error: a failed call leaves it for the next call, which is made here."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)


_MIB = 1 << 20
_FEW_CORES, _MOST_CORES = 4, 16
_BYTES_PER_CORE = 6 * _MIB
_CANDIDATES = (2 * _MIB, 4 * _MIB, 8 * _MIB)
_TRIAL_BYTES, _TRIAL_TURNS = 16 * _MIB, 3


class NoRing(Exception):
    """The ring could not be created; the message says why."""


class Ring:
    """Page-locked buffers, the threads that fill and empty them, and a copy stream for each device."""

    def __init__(self, device: torch.device) -> None:
        served = min(cores(), _MOST_CORES)
        self.workers = Workers(served - (served > _FEW_CORES))  # of many cores, one is left to the copying thread
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
        """The buffer size that copies a sample to the device in the least time."""
        host = torch.ones(_TRIAL_BYTES, dtype=torch.uint8, device="cpu")
        away = torch.empty(_TRIAL_BYTES, dtype=torch.uint8, device=device)
        return min(_CANDIDATES, key=lambda slot_bytes: self.try_out(host, away, slot_bytes))

    def try_out(self, host: Tensor, away: Tensor, slot_bytes: int) -> float:
        self.cut(slot_bytes)
        parts = away.split(slot_bytes)  # type: ignore[no-untyped-call]
        pieces = [Piece(host, host.data_ptr() + at * slot_bytes, part, part.nbytes) for at, part in enumerate(parts)]
        began = time.perf_counter()
        with self.channel(self.stream(away.device), lambda _: None) as channel:
            Pieces(channel, pieces * _TRIAL_TURNS).to_device()
        return time.perf_counter() - began

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The copy stream of a device."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    @contextmanager
    def channel(self, stream: torch.cuda.Stream, advance: Advance) -> Iterator[Channel]:
        """Exclusive use of the buffers, with a stream."""
        with self._lock:
            if self._closed:
                raise RuntimeError("tm.release() was called during a move. Fix: call tm.move(...) again")
            yield Channel(self.slots, self.workers, stream, advance)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.workers.stop()
            with suppress(RuntimeError):  # a failed device
                for device in self._streams:
                    torch.cuda.synchronize(device)
            if self._memory is not None:
                self._memory.unlock()


def slots_of(memory: Tensor, slot_bytes: int) -> tuple[Tensor, ...]:
    """As many whole slots as fit in the memory."""
    whole = memory[: memory.nbytes // slot_bytes * slot_bytes]
    return whole.split(slot_bytes)  # type: ignore[no-any-return, no-untyped-call]


# ---------------------------------------------------------------- the ring of this process

_ring: Ring | None = None
_making = threading.Lock()


def shared_ring(device: torch.device) -> Ring:
    """The ring of this process, created on first use. Raises NoRing."""
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
    """Free the page-locked memory and the threads that moves keep. A later move creates them again."""
    global _ring
    with _making:
        if _ring is not None:
            _ring.close()
            _ring = None


def _forget() -> None:
    """In a forked child: forget the ring, whose threads and locked pages belong to the parent."""
    global _ring, _making
    _ring, _making = None, threading.Lock()


atexit.register(release_ring)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
