"""Host copies: where in the arena the bytes of each storage are kept, also while it is on its device.

A host copy belongs to the first tensor of its storage and is freed with it. It is current if nothing on the host can
have written to it since it was uploaded, and if on the device the storage is where it was put, with the same version
counters and the same fingerprint. Versions are compared first, since that costs nothing; the fingerprint decides, since
not every write changes a version.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove.internals.guards import without_modes
from torchmove.internals.rebinding import version_of
from torchmove.internals.storages import multiplied_bytes
from torchmove.moving.movers.copies import CopyBatch
from torchmove.parking.arena import Arena, Span, Transfer, rounded
from torchmove.surveying.inventory import Inventory

# ---------------------------------------------------------------- fingerprints


MIB = 1 << 20
_ROW, _COLUMNS, _LEAST_ROWS = 4096, 16, 17
_WORDS = MIB // 8


class Fingerprinter:
    """Computes fingerprints on a device: they tell there whether its bytes still equal the host copy.

    Made for one operation, so that its factors do not stay on the device. A fingerprint has one 64-bit number per MiB.
    A single change is always detected; swapped bytes or any other change are missed with the probability that two
    random numbers are equal. There are two methods; a device always uses the same:

    - where the device multiplies int8 matrices: each row of 4 KiB times 16 columns of random bytes; the products, a
      hundredth of the data, times random odd numbers. The bytes are read once, at memory bandwidth.
    - elsewhere, as 64-bit words: each is folded, so that its high bits count as much as its low ones, multiplied by an
      odd factor for its position, and all are added modulo 2**64; a few MiB at a time, which stay in its cache.

    Nothing here synchronizes with the device.
    """

    def __init__(self, device: torch.device, *, by_rows: bool | None = None) -> None:
        self.by_rows = _multiplies_bytes(device) if by_rows is None else by_rows
        if self.by_rows:
            self.columns = _odd_bytes().to(device, non_blocking=True)
            self.factors = _odd_numbers(MIB // _ROW * _COLUMNS).to(device, non_blocking=True)
        else:
            self.factors = _odd_numbers(_WORDS).to(device, non_blocking=True)
        self.at_once = 1024 * MIB if self.by_rows else 32 * MIB

    def take(self, flat: Tensor) -> Tensor:
        """The fingerprint of a flat tensor of bytes: a number for every MiB and one for the rest, on its device."""
        whole = flat.numel() // MIB * MIB
        parts = [self._numbers(flat[at : min(at + self.at_once, whole)], MIB) for at in range(0, whole, self.at_once)]
        left = flat.numel() - whole
        if left:
            rest = flat.new_zeros(max(rounded(left, _ROW), _LEAST_ROWS * _ROW) if self.by_rows else rounded(left, 8))
            rest[:left].copy_(flat[whole:])
            parts.append(self._numbers(rest, len(rest)))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _numbers(self, flat: Tensor, nbytes: int) -> Tensor:
        """A number for every `nbytes` bytes."""
        if self.by_rows:
            words = multiplied_bytes(flat.view(torch.int8).view(-1, _ROW), self.columns.t())
            words = words.view(-1, nbytes // _ROW * _COLUMNS)
            return (words * self.factors[: words.size(1)]).sum(1)
        words = flat.view(torch.int64).view(-1, nbytes // 8)
        folded = words >> 32
        folded &= 0xFFFFFFFF  # clears the sign bits shifted in: with them, a word and its complement would be equal
        folded ^= words
        folded *= self.factors[: words.size(1)]
        return folded.sum(1)


@cache
def _odd_numbers(count: int) -> Tensor:
    """Pseudorandom odd numbers, the same every time. Kept on the host: copying them is faster than computing them on a
    device."""
    with without_modes():  # the result is cached, so it must not depend on the modes active now
        mixed = torch.arange(1, count + 1, device="cpu")
        for factor, shift in ((-7046029254386353131, 29), (-4658895280553007687, 32)):
            mixed *= factor
            mixed ^= mixed >> shift
        return mixed | 1


@cache
def _odd_bytes() -> Tensor:
    with without_modes():
        return _odd_numbers(_ROW * _COLUMNS).to(torch.int8).view(_COLUMNS, _ROW)


@cache
def _multiplies_bytes(device: torch.device) -> bool:
    """Whether the device multiplies int8 matrices: NVIDIA GPUs since Turing do."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (7, 5)


# ---------------------------------------------------------------- host copies


Versions = tuple[int | None, ...]


class VersionCounters:
    """torch's version counters, which count in-place writes. For a part of a composite tensor (such as a shard) those
    of the composite count too, since torch counts a write through it there."""

    def __init__(self, inventory: Inventory) -> None:
        self.tensors = inventory.tensors.objects
        self.around = {id(part): composite.tensor for composite in inventory.composites for part in composite.parts}

    def of(self, entries: Sequence[int]) -> Versions:
        """The versions of the tensors on a storage; None for tensors without a counter."""
        tensors: Sequence[Tensor] = [self.tensors[entry] for entry in entries]
        if self.around:
            tensors = [each for tensor in tensors for each in self._with_composites(tensor)]
        return tuple([None if tensor.is_inference() else version_of(tensor) for tensor in tensors])

    def _with_composites(self, tensor: Tensor) -> Iterator[Tensor]:
        found: Tensor | None = tensor
        while found is not None:
            yield found
            found = self.around.get(id(found))


@dataclass(eq=False)
class FingerprintedRun:
    """Storages that were copied to adjacent device memory, and the fingerprint of their bytes."""

    piece: Transfer  # without its tensor, which would keep the memory alive
    fingerprint: Tensor
    members: list[tuple[int, int]]  # addresses and sizes of the storages, in order


class Baseline(NamedTuple):
    """A storage as it was when its host copy had been copied to the device."""

    address: int
    versions: Versions
    run: FingerprintedRun


class _Ref(weakref.ref[Tensor]):
    __slots__ = ("key",)
    key: int


class _Lease(NamedTuple):
    """A CPU tensor on a host copy, and a reference to the arena memory that its storage keeps."""

    kind: Kind | None
    tensor: Tensor
    view: weakref.ref[memoryview]


@dataclass(eq=False)
class HostCopy:
    """The host copy of one storage."""

    span: Span
    tensor: _Ref
    group: int  # storages of one group change together
    leased: weakref.ref[memoryview] | None = None
    baseline: Baseline | None = None
    _next: _Lease | None = None

    @property
    def is_leased(self) -> bool:
        """Whether a storage uses this memory, including one that user code took from the parked state."""
        return self.leased is not None and self.leased() is not None

    def lease(self, kind: Kind | None) -> Tensor:
        lease, self._next = self._next, None
        if lease is None or lease.kind != kind:
            lease = self._make_lease(kind)
        self.leased = lease.view
        return lease.tensor

    def prepare(self, kind: Kind | None) -> None:
        """Create the next lease in advance."""
        self._next = self._make_lease(kind)

    def _make_lease(self, kind: Kind | None) -> _Lease:
        view, (dtype, shape) = self.span.view(), kind or (torch.uint8, torch.Size([self.span.nbytes]))
        return _Lease(kind, torch.frombuffer(view, dtype=dtype).view(shape), weakref.ref(view))


Kind = tuple[torch.dtype, torch.Size]


def kinds_of(batch: CopyBatch) -> list[Kind | None]:
    """The dtype and shape of the tensor on each host copy; None for a flat tensor of bytes."""
    metadata, firsts = batch.moves.storages.metadata, batch.moves.firsts
    return [
        (metadata.dtypes[first], metadata.shapes[first]) if dense else None
        for first, dense in zip(firsts, batch.dense, strict=True)
    ]


class Wanted(Protocol):
    """A storage that needs a host copy, and the tensor that the copy belongs to."""

    @property
    def source(self) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def address(self) -> int: ...


class HostCopies:
    """All host copies of this process, by the tensor they belong to."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.guard = threading.RLock()
        self._known: dict[int, HostCopy] = {}
        self._dead: deque[_Ref] = deque()
        self._retired: list[HostCopy] = []  # their tensor is gone, but a storage still uses the memory

    def of(self, tensor: Tensor) -> HostCopy | None:
        host_copy = self._known.get(id(tensor))
        return host_copy if host_copy is not None and host_copy.tensor() is tensor else None

    def reserve(self, wanted: Sequence[Wanted], *, locked: bool, most: int | None) -> list[HostCopy | None]:
        """A host copy for each storage, as far as `most` bytes of arena allow. New ones are adjacent where the storages
        are, group by group."""
        self.sweep()
        found: list[HostCopy | None] = [self.of(each.source) for each in wanted]
        missing: list[int] = []
        for index, host_copy in enumerate(found):
            span = None if host_copy is None or host_copy.is_leased else host_copy.span
            if span is None or span.nbytes != wanted[index].nbytes or span.extent.locked != locked:
                missing.append(index)
        missing.sort(key=lambda index: (wanted[index].group, wanted[index].address))
        self._drop([host_copy for index in missing if (host_copy := found[index]) is not None])
        spans = self.arena.take([wanted[index].nbytes for index in missing], locked=locked, most=most)
        for index, span in zip(missing, spans, strict=True):
            found[index] = None if span is None else self._made(wanted[index], span)
        return found

    def _made(self, wanted: Wanted, span: Span) -> HostCopy:
        ref = _Ref(wanted.source, self._died)
        ref.key = id(wanted.source)
        host_copy = self._known[ref.key] = HostCopy(span, ref, wanted.group)
        return host_copy

    def forget(self, tensors: Iterable[Tensor]) -> None:
        self._drop([host_copy for host_copy in map(self.of, tensors) if host_copy is not None])

    def _died(self, ref: weakref.ref[Tensor]) -> None:
        """Called by Python at any point of the program, so it only frees the fingerprint on the device; `sweep` does
        the rest."""
        assert isinstance(ref, _Ref)
        host_copy = self._known.get(ref.key)
        if host_copy is not None and host_copy.tensor is ref:
            host_copy.baseline = None
        self._dead.append(ref)

    def sweep(self) -> None:
        """Free the host copies of tensors that no longer exist."""
        gone: list[HostCopy] = []
        while self._dead:
            ref = self._dead.popleft()
            host_copy = self._known.get(ref.key)
            if host_copy is not None and host_copy.tensor is ref:
                gone.append(host_copy)
        self._drop(gone)
        done = [host_copy for host_copy in self._retired if not host_copy.is_leased]
        if done:
            self._retired = [host_copy for host_copy in self._retired if host_copy.is_leased]
            self.arena.give_back(host_copy.span for host_copy in done)

    def _drop(self, copies: Sequence[HostCopy]) -> None:
        for host_copy in copies:
            self._known.pop(host_copy.tensor.key, None)
            host_copy.baseline = None
        self._retired += [host_copy for host_copy in copies if host_copy.is_leased]
        self.arena.give_back(host_copy.span for host_copy in copies if not host_copy.is_leased)

    def free_bytes(self) -> int:
        """Arena memory that is free for any state."""
        self.sweep()
        return self.arena.free_bytes

    def kept_bytes(self, tensors: Iterable[Tensor]) -> int:
        """Arena memory reserved for these tensors."""
        return sum(each.span.nbytes for each in map(self.of, tensors) if each is not None and not each.is_leased)

    def release(self) -> None:
        """Free all memory that holds no parked state."""
        with self.guard:
            self.sweep()
            self._drop([host_copy for host_copy in self._known.values() if not host_copy.is_leased])
            self.arena.shrink()


host_copies = HostCopies()


def _forget() -> None:
    """In a forked child: forget the arena, which is locked by the parent. Parked tensors can still be read."""
    host_copies.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
