"""Windows, cut on the copy of a storage; and many storages made of one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmove._records import Block, Window
from torchmove._storage.reach import looking_at, packed
from torchmove._storage.reading import NAMED_TENSORS, has_storage, window_of


def apart(slabs: Sequence[Tensor]) -> list[Tensor]:
    """The rows of some tensors in host memory, each in a storage of its own."""
    rows: Any = torch.unbind_copy  # torch's stubs know only the form that fills given tensors
    return [copy for slab in slabs for copy in (map(_copied, slab) if is_shared_out(slab[0]) else rows(slab))]


def many_like(one: Tensor, count: int, device: torch.device) -> list[Tensor]:
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


def cut(base: Tensor, tensor: Tensor, block: Block, offset: int | None) -> Tensor:
    """The tensor's window, cut on `base`, the copy of its block, in which it begins at an offset."""
    if block.opaque:
        return dressed(base, tensor)
    window = window_of(tensor)
    if offset is not None:
        window = window._replace(offset=offset)
    if tensor.is_inference():
        with torch.inference_mode():
            return dressed(_cut(base, window, block), tensor)
    return dressed(_cut(base, window, block), tensor)


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


def _cut(base: Tensor, window: Window, block: Block) -> Tensor:
    first, size = window.offset * window.dtype.itemsize, window.dtype.itemsize
    shift = next((at - start for start, stop, at in packed(block.spans)[0] if start <= first < stop), -first)
    offset = (first + shift) // size
    if not has_storage(base.device.type):
        # Its base is a flat tensor of the one dtype that all windows have.
        return base.as_strided(window.shape, window.stride, offset)
    return looking_at(base.untyped_storage(), window._replace(offset=offset))
