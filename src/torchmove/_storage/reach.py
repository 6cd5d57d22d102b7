"""What windows reach of a storage, and what a mover is given of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import and_
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from torchmove._records import Block, Load, Moves, Rows, Slots, Window
from torchmove._shells import PLAIN
from torchmove._storage.reading import AT_ONCE, COPIED_AS_BYTES, NAMED_TENSORS, has_storage

# Copies keep every reachable byte at the same place within a line of this many bytes, so that kernels that look at the
# alignment of their input take the same path as before.
LINE_BYTES = 64
# Unreached bytes are left out where there are at least this many: less is not worth a copy of its own.
GAP_BYTES = 4096


def reached(windows: Iterable[Window]) -> tuple[tuple[int, int], ...]:
    """The spans of a storage's bytes that windows reach, each from the start of a line, with gaps between."""
    spans: list[tuple[int, int]] = []
    for first, stop in sorted(window.extent for window in windows):
        start = first - first % LINE_BYTES
        if spans and start < spans[-1][1] + GAP_BYTES:
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    return tuple(spans)


def packed(spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int, int]], int]:
    """Where each span begins in a copy that leaves out what is not reached, and how many bytes that copy has."""
    places, end = [], 0
    for start, stop in spans:
        begin = -(-end // LINE_BYTES) * LINE_BYTES
        places.append((start, stop, begin))
        end = begin + stop - start
    return places, end


def looking_at(storage: UntypedStorage, window: Window) -> Tensor:
    """A new tensor that looks at a storage through a window."""
    empty = torch.empty(0, dtype=window.dtype, device=storage.device)
    return empty.set_(storage, window.offset, window.shape, window.stride)


def bytes_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some bytes of the storage that a tensor looks at, as a tensor of bytes."""
    if tensor._is_zerotensor():
        raise RuntimeError("a tensor has no memory behind it (forward-mode AD makes such zeros): clone it first")
    return looking_at(tensor.untyped_storage(), Window(torch.uint8, torch.Size([stop - start]), (1,), start))


def look_at_memory(block: Block, like: Tensor) -> Tensor:
    """An empty tensor on a storage that spans all the memory of a block, whose storages each show a part of it. Nothing
    but those keeps the memory alive."""
    assert block.address is not None
    storage: Any = torch._C._construct_storage_from_data_pointer(block.address, block.device, block.storage_bytes)
    return looking_at(storage, Window(like.dtype, torch.Size([0]), (1,), 0))


# ---------------------------------------------------------------- what a mover is given


def load_of(moves: Moves, slots: Slots) -> Load:
    sources = [slots.tensors[first] for first in moves.firsts]
    whole = list(map((0).__lt__, moves.nbytes))
    for index, block in moves.special():
        whole[index] = False
        if block.address is not None:
            sources[index] = look_at_memory(block, sources[index])
    if not all(has_storage(target.type) for _, target in moves.ways):
        whole = [each and has_storage(move.target.type) for each, move in zip(whole, moves, strict=True)]
    dtypes = {*slots.looks.dtypes}
    odds = _ODD if any(dtype.is_complex for dtype in dtypes) else _ODD_REAL
    odds = odds if dtypes.isdisjoint(COPIED_AS_BYTES) else (*odds, _is_copied_as_bytes)
    return Load(sources, moves, _Dense(sources, whole, odds))


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
    Tensor._is_view,
    Tensor._is_zerotensor,
    Tensor.is_neg,
    Tensor.is_inference,
    *([Tensor.has_names] if NAMED_TENSORS else []),  # type: ignore[attr-defined]
)
_ODD: tuple[_Test, ...] = (*_ODD_REAL, Tensor.is_conj)  # only complex numbers are


def _is_copied_as_bytes(tensor: Tensor) -> bool:
    return tensor.dtype in COPIED_AS_BYTES
