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
from torchmove.moving.batches import Load
from torchmove.parking.arena import Arena, Span
from torchmove.parking.lanes import Piece
from torchmove.surveying.inventory import Inventory

Versions = tuple[int | None, ...]


class Counters:
    """What is written through a tensor made of tensors (a shard, say), torch counts there and not at its parts."""

    def __init__(self, inventory: Inventory) -> None:
        self.tensors = inventory.slots.tensors
        self.around = {id(part): shell.tensor for shell in inventory.shells for part in shell.parts}

    def of(self, slots: Sequence[int]) -> Versions:
        """Of the tensors that look at a block; None for what is not counted."""
        tensors: Sequence[Tensor] = [self.tensors[slot] for slot in slots]
        if self.around:
            tensors = [each for tensor in tensors for each in self._with_shells(tensor)]
        return tuple([None if tensor.is_inference() else version_of(tensor) for tensor in tensors])

    def _with_shells(self, tensor: Tensor) -> Iterator[Tensor]:
        found: Tensor | None = tensor
        while found is not None:
            yield found
            found = self.around.get(id(found))


@dataclass(eq=False)
class Run:
    """Blocks that were put side by side on a device, and the fingerprint of what was put there."""

    piece: Piece  # which shows nothing: that would keep the memory
    fingerprint: Tensor
    members: list[tuple[int, int]]  # their addresses and sizes, in order


class Truth(NamedTuple):
    """What the device showed when the block had been copied up."""

    address: int
    versions: Versions
    run: Run


class _Ref(weakref.ref[Tensor]):
    __slots__ = ("key",)
    key: int


class _Loan(NamedTuple):
    """A tensor on the CPU that looks at a mirror, and what its storage holds of the arena for as long as it lives."""

    kind: Kind | None
    tensor: Tensor
    view: weakref.ref[memoryview]


@dataclass(eq=False)
class Mirror:
    span: Span
    tensor: _Ref
    group: int  # blocks of one group change together, or do not
    lent: weakref.ref[memoryview] | None = None
    truth: Truth | None = None
    _next: _Loan | None = None

    @property
    def is_lent(self) -> bool:
        """Does a storage look at it? Also somebody else's, who read the state while it was parked."""
        return self.lent is not None and self.lent() is not None

    def lend(self, kind: Kind | None) -> Tensor:
        loan, self._next = self._next, None
        if loan is None or loan.kind != kind:
            loan = self._loan(kind)
        self.lent = loan.view
        return loan.tensor

    def prepare(self, kind: Kind | None) -> None:
        """Have ready what will be lent next, while there is time."""
        self._next = self._loan(kind)

    def _loan(self, kind: Kind | None) -> _Loan:
        view, (dtype, shape) = self.span.lend(), kind or (torch.uint8, torch.Size([self.span.nbytes]))
        return _Loan(kind, torch.frombuffer(view, dtype=dtype).view(shape), weakref.ref(view))


Kind = tuple[torch.dtype, torch.Size]


def kinds_of(load: Load) -> list[Kind | None]:
    """What looks at the mirror of each block: the like of its source; None: its bytes."""
    looks, firsts = load.moves.blocks.looks, load.moves.firsts
    return [
        (looks.dtypes[first], looks.shapes[first]) if dense else None
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


class Mirrors:
    """All of this process, by the tensor they belong to."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.guard = threading.RLock()
        self._known: dict[int, Mirror] = {}
        self._dead: deque[_Ref] = deque()
        self._lingering: list[Mirror] = []  # nobody's any more, but still looked at

    def of(self, tensor: Tensor) -> Mirror | None:
        mirror = self._known.get(id(tensor))
        return mirror if mirror is not None and mirror.tensor() is tensor else None

    def reserve(self, wanted: Sequence[Wanted], *, locked: bool, most: int | None) -> list[Mirror | None]:
        """For each a mirror of its size, as far as `most` bytes of arena allow. New ones lie side by side as the blocks
        do, group by group."""
        self.sweep()
        found: list[Mirror | None] = [self.of(each.source) for each in wanted]
        missing: list[int] = []
        for index, mirror in enumerate(found):
            span = None if mirror is None or mirror.is_lent else mirror.span
            if span is None or span.nbytes != wanted[index].nbytes or span.extent.locked != locked:
                missing.append(index)
        missing.sort(key=lambda index: (wanted[index].group, wanted[index].address))
        self._drop([mirror for index in missing if (mirror := found[index]) is not None])
        spans = self.arena.take([wanted[index].nbytes for index in missing], locked=locked, most=most)
        for index, span in zip(missing, spans, strict=True):
            found[index] = None if span is None else self._made(wanted[index], span)
        return found

    def _made(self, wanted: Wanted, span: Span) -> Mirror:
        ref = _Ref(wanted.source, self._died)
        ref.key = id(wanted.source)
        mirror = self._known[ref.key] = Mirror(span, ref, wanted.group)
        return mirror

    def forget(self, tensors: Iterable[Tensor]) -> None:
        self._drop([mirror for mirror in map(self.of, tensors) if mirror is not None])

    def _died(self, ref: weakref.ref[Tensor]) -> None:
        """Python calls this at any moment, so it does next to nothing; but what is on the device goes at once."""
        assert isinstance(ref, _Ref)
        mirror = self._known.get(ref.key)
        if mirror is not None and mirror.tensor is ref:
            mirror.truth = None
        self._dead.append(ref)

    def sweep(self) -> None:
        """Take back what belonged to tensors that are gone."""
        gone: list[Mirror] = []
        while self._dead:
            ref = self._dead.popleft()
            mirror = self._known.get(ref.key)
            if mirror is not None and mirror.tensor is ref:
                gone.append(mirror)
        self._drop(gone)
        done = [mirror for mirror in self._lingering if not mirror.is_lent]
        if done:
            self._lingering = [mirror for mirror in self._lingering if mirror.is_lent]
            self.arena.give_back(mirror.span for mirror in done)

    def _drop(self, mirrors: Sequence[Mirror]) -> None:
        for mirror in mirrors:
            self._known.pop(mirror.tensor.key, None)
            mirror.truth = None
        self._lingering += [mirror for mirror in mirrors if mirror.is_lent]
        self.arena.give_back(mirror.span for mirror in mirrors if not mirror.is_lent)

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
            self._drop([mirror for mirror in self._known.values() if not mirror.is_lent])
            self.arena.shrink()


mirrors = Mirrors()


def _forget() -> None:
    """In a forked child: what is locked is not its own. What is parked can be read there as before."""
    mirrors.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
