"""What a mover copies: storages in a batch, each with a tensor that looks at it; and the views cut on the copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import and_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove.internals.metadata import AT_ONCE, COPIED_AS_BYTES, NAMED_TENSORS, PLAIN, View, has_storage, view_of
from torchmove.internals.views import dressed, is_view, is_zero_tensor, make_view, packed, storage_at
from torchmove.planning.plan import Moves
from torchmove.surveying.storages import StateStorage
from torchmove.surveying.tensors import Rows, StateTensors


def view_of_memory(storage: StateStorage, like: Tensor) -> Tensor:
    """An empty tensor over all the memory that several storages share. It does not keep that memory alive."""
    assert storage.address is not None
    memory = storage_at(storage.address, storage.device, storage.storage_bytes)
    return make_view(memory, View(like.dtype, torch.Size([0]), (1,), 0))


# ---------------------------------------------------------------- what a mover is given


def batch_of(moves: Moves, entries: StateTensors) -> CopyBatch:
    sources = [entries.objects[first] for first in moves.firsts]
    whole = list(map((0).__lt__, moves.nbytes))
    for index, storage in moves.special():
        whole[index] = False
        if storage.address is not None:
            sources[index] = view_of_memory(storage, sources[index])
    if not all(has_storage(target.type) for _, target in moves.ways):
        whole = [each and has_storage(move.target.type) for each, move in zip(whole, moves, strict=True)]
    dtypes = {*entries.metadata.dtypes}
    odds = _ODD if any(dtype.is_complex for dtype in dtypes) else _ODD_REAL
    odds = odds if dtypes.isdisjoint(COPIED_AS_BYTES) else (*odds, _is_copied_as_bytes)
    return CopyBatch(sources, moves, _Dense(sources, whole, odds))


_Test = Callable[[Any], bool]


class _Dense(Rows[bool]):
    """Whether each of some tensors is dense. Found out when somebody asks, from the first one on, many at once."""

    def __init__(self, tensors: Sequence[Tensor], whole: Sequence[bool], odds: Sequence[_Test]) -> None:
        self._tensors, self._whole, self._odds = tensors, whole, odds
        self._found: list[bool] = []

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[bool]:
        return iter(self.rows(range(len(self))))

    def row(self, index: int) -> bool:
        at = range(len(self))[index]  # there is one, and it may be counted from the end
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


# Contiguous and yet not just bytes in a row; and a view has a base to be thought of.
_ODD_REAL: tuple[_Test, ...] = (
    is_view,
    is_zero_tensor,
    Tensor.is_neg,
    Tensor.is_inference,
    *([Tensor.has_names] if NAMED_TENSORS else []),  # type: ignore[attr-defined]
)
_ODD: tuple[_Test, ...] = (*_ODD_REAL, Tensor.is_conj)  # only complex numbers are


def _is_copied_as_bytes(tensor: Tensor) -> bool:
    return tensor.dtype in COPIED_AS_BYTES


def cut(base: Tensor, tensor: Tensor, storage: StateStorage, offset: int | None) -> Tensor:
    """The tensor's window, cut on `base`, the copy of its block, in which it begins at an offset."""
    if storage.opaque:
        return dressed(base, tensor)
    window = view_of(tensor)
    if offset is not None:
        window = window._replace(offset=offset)
    if tensor.is_inference():
        with torch.inference_mode():
            return dressed(_cut(base, window, storage), tensor)
    return dressed(_cut(base, window, storage), tensor)


def _cut(base: Tensor, window: View, storage: StateStorage) -> Tensor:
    first, size = window.offset * window.dtype.itemsize, window.dtype.itemsize
    shift = next((at - start for start, stop, at in packed(storage.spans)[0] if start <= first < stop), -first)
    offset = (first + shift) // size
    if not has_storage(base.device.type):
        # Its base is a flat tensor of the one dtype that all windows have.
        return base.as_strided(window.shape, window.stride, offset)
    return make_view(base.untyped_storage(), window._replace(offset=offset))


class StorageCopy(NamedTuple):
    """A block that a mover shall copy; `source` is a tensor that looks at it.

    `dense`: the source is the only one, it is contiguous and shows all of the block, so the copy can be its like: same
    dtype, same shape. Otherwise the copy is the reached bytes of the block, in a row.
    """

    source: Tensor
    storage: StateStorage
    target: torch.device
    dense: bool


class CopyBatch(Rows[StorageCopy]):
    """All that a mover shall copy, in columns."""

    def __init__(self, sources: Sequence[Tensor], moves: Moves, dense: Sequence[bool]) -> None:
        self.sources, self.moves, self.dense = sources, moves, dense

    def __len__(self) -> int:
        return len(self.sources)

    def some(self, indices: Sequence[int]) -> CopyBatch:
        """A part of it, in that order."""
        firsts = [self.moves.firsts[index] for index in indices]
        moves = Moves(self.moves.storages, firsts, self.moves.placement)
        return CopyBatch([self.sources[index] for index in indices], moves, [self.dense[index] for index in indices])

    def row(self, index: int) -> StorageCopy:
        return StorageCopy(self.sources[index], *self.moves[index], self.dense[index])


Advance = Callable[[int], object]


class Mover(Protocol):
    """Copies blocks. Returns for each a tensor on the target from which the windows are cut; changes nothing.

    `advance` is told how many bytes have arrived since it was told last. Copies may still be under way when `copy`
    returns: `finish` waits for them, and changes nothing either. Where the move has failed, `drop` lets go of what
    they would have needed: the error may be kept, and hold the mover.
    """

    name: str

    def copy(self, load: CopyBatch, advance: Advance) -> list[Tensor]: ...

    def finish(self) -> None: ...

    def drop(self) -> None: ...
