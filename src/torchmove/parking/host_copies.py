"""How often a block was written to, as far as torch counts: the quick question, before the fingerprint is asked."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove.internals.rebinding import version_of
from torchmove.moving.batches import CopyBatch
from torchmove.parking.arena import Arena, Span
from torchmove.parking.lanes import Transfer
from torchmove.surveying.inventory import Inventory

Versions = tuple[int | None, ...]


class VersionCounters:
    """What is written through a tensor made of tensors (a shard, say), torch counts there and not at its parts."""

    def __init__(self, inventory: Inventory) -> None:
        self.tensors = inventory.tensors.objects
        self.around = {id(part): composite.tensor for composite in inventory.composites for part in composite.parts}

    def of(self, entries: Sequence[int]) -> Versions:
        """Of the tensors that look at a block; None for what is not counted."""
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
    """Blocks that were put side by side on a device, and the fingerprint of what was put there."""

    piece: Transfer  # which shows nothing: that would keep the memory
    fingerprint: Tensor
    members: list[tuple[int, int]]  # their addresses and sizes, in order


class Baseline(NamedTuple):
    """What the device showed when the block had been copied up."""

    address: int
    versions: Versions
    run: FingerprintedRun


class _Ref(weakref.ref[Tensor]):
    __slots__ = ("key",)
    key: int


class _Lease(NamedTuple):
    """A tensor on the CPU that looks at a mirror, and what its storage holds of the arena for as long as it lives."""

    kind: Kind | None
    tensor: Tensor
    view: weakref.ref[memoryview]


@dataclass(eq=False)
class HostCopy:
    span: Span
    tensor: _Ref
    group: int  # blocks of one group change together, or do not
    lent: weakref.ref[memoryview] | None = None
    baseline: Baseline | None = None
    _next: _Lease | None = None

    @property
    def is_lent(self) -> bool:
        """Does a storage look at it? Also somebody else's, who read the state while it was parked."""
        return self.lent is not None and self.lent() is not None

    def lend(self, kind: Kind | None) -> Tensor:
        lease, self._next = self._next, None
        if lease is None or lease.kind != kind:
            lease = self._lease(kind)
        self.lent = lease.view
        return lease.tensor

    def prepare(self, kind: Kind | None) -> None:
        """Have ready what will be lent next, while there is time."""
        self._next = self._lease(kind)

    def _lease(self, kind: Kind | None) -> _Lease:
        view, (dtype, shape) = self.span.lend(), kind or (torch.uint8, torch.Size([self.span.nbytes]))
        return _Lease(kind, torch.frombuffer(view, dtype=dtype).view(shape), weakref.ref(view))


Kind = tuple[torch.dtype, torch.Size]


def kinds_of(load: CopyBatch) -> list[Kind | None]:
    """What looks at the mirror of each block: the like of its source; None: its bytes."""
    metadata, firsts = load.moves.storages.metadata, load.moves.firsts
    return [
        (metadata.dtypes[first], metadata.shapes[first]) if dense else None
        for first, dense in zip(firsts, load.dense, strict=True)
    ]


class Wanted(Protocol):
    """A block that needs a mirror, and the tensor that this belongs to."""

    @property
    def source(self) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def address(self) -> int: ...


class HostCopies:
    """All of this process, by the tensor they belong to."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.guard = threading.RLock()
        self._known: dict[int, HostCopy] = {}
        self._dead: deque[_Ref] = deque()
        self._lingering: list[HostCopy] = []  # nobody's any more, but still looked at

    def of(self, tensor: Tensor) -> HostCopy | None:
        host_copy = self._known.get(id(tensor))
        return host_copy if host_copy is not None and host_copy.tensor() is tensor else None

    def reserve(self, wanted: Sequence[Wanted], *, locked: bool, most: int | None) -> list[HostCopy | None]:
        """For each a mirror of its size, as far as `most` bytes of arena allow. New ones lie side by side as the blocks
        do, group by group."""
        self.sweep()
        found: list[HostCopy | None] = [self.of(each.source) for each in wanted]
        missing: list[int] = []
        for index, host_copy in enumerate(found):
            span = None if host_copy is None or host_copy.is_lent else host_copy.span
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
        """Python calls this at any moment, so it does next to nothing; but what is on the device goes at once."""
        assert isinstance(ref, _Ref)
        host_copy = self._known.get(ref.key)
        if host_copy is not None and host_copy.tensor is ref:
            host_copy.baseline = None
        self._dead.append(ref)

    def sweep(self) -> None:
        """Take back what belonged to tensors that are gone."""
        gone: list[HostCopy] = []
        while self._dead:
            ref = self._dead.popleft()
            host_copy = self._known.get(ref.key)
            if host_copy is not None and host_copy.tensor is ref:
                gone.append(host_copy)
        self._drop(gone)
        done = [host_copy for host_copy in self._lingering if not host_copy.is_lent]
        if done:
            self._lingering = [host_copy for host_copy in self._lingering if host_copy.is_lent]
            self.arena.give_back(host_copy.span for host_copy in done)

    def _drop(self, mirrors: Sequence[HostCopy]) -> None:
        for host_copy in mirrors:
            self._known.pop(host_copy.tensor.key, None)
            host_copy.baseline = None
        self._lingering += [host_copy for host_copy in mirrors if host_copy.is_lent]
        self.arena.give_back(host_copy.span for host_copy in mirrors if not host_copy.is_lent)

    def free_bytes(self) -> int:
        """What anybody can be parked in without any new memory."""
        self.sweep()
        return self.arena.free_bytes

    def kept_bytes(self, tensors: Iterable[Tensor]) -> int:
        """What is kept for these alone."""
        return sum(each.span.nbytes for each in map(self.of, tensors) if each is not None and not each.is_lent)

    def release(self) -> None:
        """Give back all in which nothing is parked."""
        with self.guard:
            self.sweep()
            self._drop([host_copy for host_copy in self._known.values() if not host_copy.is_lent])
            self.arena.shrink()


host_copies = HostCopies()


def _forget() -> None:
    """In a forked child: what is locked is not its own. What is parked can be read there as before."""
    host_copies.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
