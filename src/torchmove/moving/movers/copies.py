"""What a mover copies, a batch of storages each with a tensor on it; and the plain mover.

The plain mover uses torch's own copy, one storage at a time. It works on every device and is slow between CPU and CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import and_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove.internals.storages import (
    AT_ONCE,
    COPIED_AS_BYTES,
    NAMED_TENSORS,
    PLAIN,
    View,
    gathered,
    has_storage,
    is_view,
    is_zero_tensor,
    make_view,
    storage_at,
)
from torchmove.planning.plan import Conversion, Moves
from torchmove.surveying.inventory import Rows, StateStorage, StateTensors


def view_of_memory(storage: StateStorage, like: Tensor) -> Tensor:
    """An empty tensor on the memory that several storages share. It does not keep that memory alive."""
    assert storage.address is not None
    memory = storage_at(storage.address, storage.device, storage.storage_bytes)
    return make_view(memory, View(like.dtype, torch.Size([0]), (1,), 0))


# ---------------------------------------------------------------- batches of copies


def batch_of(moves: Moves, entries: StateTensors) -> CopyBatch:
    sources = [entries.objects[first] for first in moves.firsts]
    whole = list(map((0).__lt__, moves.nbytes))
    for index, storage in moves.special():
        whole[index] = False
        if storage.address is not None:
            sources[index] = view_of_memory(storage, sources[index])
    if not all(has_storage(target.type) for _, target in moves.ways):
        targets = [moves.placement[first] for first in moves.firsts]
        whole = [each and has_storage(target.type) for each, target in zip(whole, targets, strict=True)]
    dtypes = {*entries.metadata.dtypes}
    odds = _ODD if any(dtype.is_complex for dtype in dtypes) else _ODD_REAL
    odds = odds if dtypes.isdisjoint(COPIED_AS_BYTES) else (*odds, _is_copied_as_bytes)
    return CopyBatch(sources, moves, _Dense(sources, whole, odds))


_Test = Callable[[Any], bool]


class _Dense(Rows[bool]):
    """Whether each tensor is dense. Computed on demand, from the first tensor on, many at a time."""

    def __init__(self, tensors: Sequence[Tensor], whole: Sequence[bool], odds: Sequence[_Test]) -> None:
        self._tensors, self._whole, self._odds = tensors, whole, odds
        self._found: list[bool] = []

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[bool]:
        return iter(self.rows(range(len(self))))

    def row(self, index: int) -> bool:
        at = range(len(self))[index]  # raises IndexError, and resolves a negative index
        return self._up_to(at + 1)[at]

    def rows(self, some: range) -> list[bool]:
        return self._up_to(some.stop)[some.start : some.stop] if some.step == 1 else super().rows(some)

    def _up_to(self, stop: int) -> list[bool]:
        while len(self._found) < stop:
            some = slice(len(self._found), len(self._found) + AT_ONCE)
            self._found += _dense(self._tensors[some], self._whole[some], self._odds)
        return self._found


def _dense(tensors: Sequence[Tensor], whole: Sequence[bool], odds: Sequence[_Test]) -> Iterable[bool]:
    if any(any(map(is_odd, tensors)) for is_odd in odds) or not set(map(type, tensors)) <= PLAIN:
        whole = [
            each and type(tensor) in PLAIN and not any(is_odd(tensor) for is_odd in odds)
            for each, tensor in zip(whole, tensors, strict=True)
        ]
    return map(and_, whole, map(Tensor.is_contiguous, tensors))


# A contiguous tensor that is one of these is not simply its bytes; a view also has a base.
_ODD_REAL: tuple[_Test, ...] = (
    is_view,
    is_zero_tensor,
    Tensor.is_neg,
    Tensor.is_inference,
    *([Tensor.has_names] if NAMED_TENSORS else []),  # type: ignore[attr-defined]
)
_ODD: tuple[_Test, ...] = (*_ODD_REAL, Tensor.is_conj)  # only complex tensors are


def _is_copied_as_bytes(tensor: Tensor) -> bool:
    return tensor.dtype in COPIED_AS_BYTES


class StorageCopy(NamedTuple):
    """A storage to copy; `source` is a tensor on it.

    `dense`: the source is the only tensor on the storage, contiguous, and covers all of it, so the copy has its dtype
    and shape. Otherwise the copy is a flat tensor of the bytes that the storage's tensors reach. With a conversion, the
    copy has its dtype and memory format instead.
    """

    source: Tensor
    storage: StateStorage
    target: torch.device
    dense: bool
    conversion: Conversion | None = None


class CopyBatch(Rows[StorageCopy]):
    """All storages that a mover copies, in columns."""

    def __init__(self, sources: Sequence[Tensor], moves: Moves, dense: Sequence[bool]) -> None:
        self.sources, self.moves, self.dense = sources, moves, dense

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[StorageCopy]:
        firsts, placement = self.moves.firsts, self.moves.placement
        storages = list(map(self.moves.storages.at, firsts))
        targets = [placement[first] for first in firsts]
        conversions = map(self.moves.conversions.get, firsts)
        return map(StorageCopy, self.sources, storages, targets, self.dense, conversions)

    def some(self, indices: Sequence[int]) -> CopyBatch:
        """The copies at some indices, in that order."""
        firsts = [self.moves.firsts[index] for index in indices]
        moves = Moves(self.moves.storages, firsts, self.moves.placement, self.moves.conversions)
        return CopyBatch([self.sources[index] for index in indices], moves, [self.dense[index] for index in indices])

    def row(self, index: int) -> StorageCopy:
        conversion = self.moves.conversions.get(self.moves.firsts[index])
        return StorageCopy(self.sources[index], *self.moves[index], self.dense[index], conversion)


Advance = Callable[[int], object]


class Mover(Protocol):
    """Copies storages. `copy` returns a tensor on the target for each, on which views are made; it changes no tensor.

    `advance` is called with the number of bytes that have arrived since the last call. Copies may be unfinished when
    `copy` returns: `finish` waits for them. After a failed move, `drop` releases what the copies needed, since an error
    that is kept may keep the mover.
    """

    name: str

    def copy(self, batch: CopyBatch, advance: Advance) -> list[Tensor]: ...

    def finish(self) -> None: ...

    def drop(self) -> None: ...


def copy_storage(storage_copy: StorageCopy) -> Tensor:
    source, storage, target, dense, conversion = storage_copy
    if conversion is not None:
        return _converted(storage_copy, conversion)
    if dense or storage.storage_bytes < 0:  # torch copies the whole tensor
        # clone(), since `.to()` returns the tensor itself if it is on the target already.
        return source.detach().clone() if source.device == target else source.detach().to(target)
    return gathered(source, storage.spans, target)


def _converted(storage_copy: StorageCopy, conversion: Conversion) -> Tensor:
    source, storage, target, dense, _ = storage_copy
    if dense or storage.opaque or conversion.memory_format is not torch.preserve_format:
        return conversion.converted(source, target)
    flat = gathered(source, storage.spans, source.device).view(source.dtype)
    return conversion.converted(flat, target)


class Plain:
    """Copies each storage by torch's own copy."""

    name = "plain"

    def copy(self, batch: CopyBatch, advance: Advance) -> list[Tensor]:
        copies = []
        for each in batch:
            copies.append(copy_storage(each))
            advance(copies[-1].nbytes)
        return copies

    def finish(self) -> None:
        """Nothing to wait for: these copies are synchronous."""

    def drop(self) -> None:
        """Nothing to release."""
