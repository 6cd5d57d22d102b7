"""What windows reach of a storage, and what a mover is given of it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from torchmove.internals.metadata import NAMED_TENSORS, View

# Copies keep every reachable byte at the same place within a line of this many bytes, so that kernels that look at the
# alignment of their input take the same path as before.
LINE_BYTES = 64
# Unreached bytes are left out where there are at least this many: less is not worth a copy of its own.
GAP_BYTES = 4096


is_view, is_zero_tensor = Tensor._is_view, Tensor._is_zerotensor  # the latter has no memory behind it


def reached(windows: Iterable[View]) -> tuple[tuple[int, int], ...]:
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


def make_view(storage: UntypedStorage, window: View) -> Tensor:
    """A new tensor that looks at a storage through a window."""
    empty = torch.empty(0, dtype=window.dtype, device=storage.device)
    return empty.set_(storage, window.offset, window.shape, window.stride)


def storage_at(address: int, device: torch.device, nbytes: int) -> UntypedStorage:
    """A storage over memory that it does not own."""
    storage: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return storage  # type: ignore[no-any-return]


def bytes_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some bytes of the storage that a tensor looks at, as a tensor of bytes."""
    if tensor._is_zerotensor():
        raise RuntimeError("a tensor has no memory behind it (forward-mode AD makes such zeros): clone it first")
    return make_view(tensor.untyped_storage(), View(torch.uint8, torch.Size([stop - start]), (1,), start))


def rows_apart(slabs: Sequence[Tensor]) -> list[Tensor]:
    """The rows of some tensors in host memory, each in a storage of its own."""
    rows: Any = torch.unbind_copy  # torch's stubs know only the form that fills given tensors
    return [copy for slab in slabs for copy in (map(_copied, slab) if is_shared_out(slab[0]) else rows(slab))]


def empty_like_each(one: Tensor, count: int, device: torch.device) -> list[Tensor]:
    """Room for so many tensors, each in a storage of its own, all of it made in one call. `filled` makes them of it."""
    dtype = one.dtype if one.dtype in _MULTIPLIED else BITS[one.dtype.itemsize]
    prototype = torch.empty(one.shape or (1,), dtype=dtype, device=device)
    return list(torch._foreach_mul([prototype] * count, 1))


def filled(rooms: list[Tensor], slab: Tensor) -> list[Tensor]:
    """The rows of a tensor, bit for bit, each in one of the rooms: one call fills them all."""
    first = rooms[0]
    rows = slab.view(first.dtype).view(len(rooms) * len(first), *first.shape[1:])
    torch.split_with_sizes_copy(rows, [len(first)] * len(rooms), out=rooms)
    if first.dtype is not slab.dtype:
        rooms = [room.view(slab.dtype) for room in rooms]
    return rooms if slab.dim() > 1 else [room.view(()) for room in rooms]


# What many numbers are multiplied by one as, at once, on a GPU; others are seen as integers of their size.
_MULTIPLIED = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


def is_shared_out(tensor: Tensor) -> bool:
    """Is it in host memory, and so large that torch would copy it with several threads? They would stay with the thread
    that asked for it."""
    return tensor.device.type == "cpu" and tensor.numel() >= _GRAIN


def copy_alone(source: Tensor, to: Tensor) -> None:
    """Copy contiguous host memory in this thread alone, without Python's lock."""
    ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)


def _copied(source: Tensor) -> Tensor:
    copy = torch.empty_like(source)
    copy_alone(source, copy)
    return copy


_GRAIN = 32768  # elements: torch's own measure
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dressed(cut: Tensor, like: Any) -> Tensor:
    """The same memory, read conjugated, negated and with names as another tensor is."""
    if like.is_conj():
        cut = cut.conj()
    if like.is_neg():
        cut = torch._neg_view(cut)
    if NAMED_TENSORS and like.has_names():
        cut.names = like.names  # type: ignore[attr-defined]
    return cut


def undressed(tensor: Tensor) -> Tensor:
    """The same memory, read as it is."""
    plain = torch._neg_view(tensor) if tensor.is_neg() else tensor
    return plain.conj() if plain.is_conj() else plain
