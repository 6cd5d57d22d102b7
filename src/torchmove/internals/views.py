"""Views of storages: the bytes that they reach, and the tensors that are made to copy those bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from torchmove.internals.metadata import NAMED_TENSORS, View

# A copy keeps the offset of every reached byte within a line of this many bytes, so that kernels that check the
# alignment of their input take the same path as before.
LINE_BYTES = 64
# Gaps of at least this many unreached bytes are not copied: smaller ones are not worth a copy of their own.
GAP_BYTES = 4096


is_view, is_zero_tensor = Tensor._is_view, Tensor._is_zerotensor  # a zero tensor has no memory


def reached(views: Iterable[View]) -> tuple[tuple[int, int], ...]:
    """The spans of a storage's bytes that views reach, each from the start of a line, with gaps between."""
    spans: list[tuple[int, int]] = []
    for first, stop in sorted(view.extent for view in views):
        start = first - first % LINE_BYTES
        if spans and start < spans[-1][1] + GAP_BYTES:
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    return tuple(spans)


def packed(spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int, int]], int]:
    """Where each span starts in a copy without the gaps, and the size of that copy in bytes."""
    places, end = [], 0
    for start, stop in spans:
        begin = -(-end // LINE_BYTES) * LINE_BYTES
        places.append((start, stop, begin))
        end = begin + stop - start
    return places, end


def make_view(storage: UntypedStorage, view: View) -> Tensor:
    """A new tensor that is a view of a storage."""
    empty = torch.empty(0, dtype=view.dtype, device=storage.device)
    return empty.set_(storage, view.offset, view.shape, view.stride)


def storage_at(address: int, device: torch.device, nbytes: int) -> UntypedStorage:
    """A storage over memory that it does not own."""
    storage: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return storage  # type: ignore[no-any-return]


def bytes_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some bytes of a tensor's storage, as a uint8 tensor."""
    if tensor._is_zerotensor():
        raise RuntimeError("a zero tensor of forward-mode AD has no memory. Fix: tensor = tensor.clone()")
    return make_view(tensor.untyped_storage(), View(torch.uint8, torch.Size([stop - start]), (1,), start))


def rows_apart(slabs: Sequence[Tensor]) -> list[Tensor]:
    """The rows of some tensors in host memory, each in a storage of its own."""
    rows: Any = torch.unbind_copy  # torch's type stubs only know the variant with out=
    return [copy for slab in slabs for copy in (map(_copied, slab) if is_shared_out(slab[0]) else rows(slab))]


def empty_like_each(one: Tensor, count: int, device: torch.device) -> list[Tensor]:
    """This many empty tensors, each in a storage of its own, made in one call. `filled` fills them."""
    dtype = one.dtype if one.dtype in _MULTIPLIED else BITS[one.dtype.itemsize]
    prototype = torch.empty(one.shape or (1,), dtype=dtype, device=device)
    return list(torch._foreach_mul([prototype] * count, 1))


def filled(rooms: list[Tensor], slab: Tensor) -> list[Tensor]:
    """Copy the rows of a tensor, bit for bit, into the given empty tensors: one call fills them all."""
    first = rooms[0]
    rows = slab.view(first.dtype).view(len(rooms) * len(first), *first.shape[1:])
    torch.split_with_sizes_copy(rows, [len(first)] * len(rooms), out=rooms)
    if first.dtype is not slab.dtype:
        rooms = [room.view(slab.dtype) for room in rooms]
    return rooms if slab.dim() > 1 else [room.view(()) for room in rooms]


# The dtypes that _foreach_mul supports on a GPU; others are copied as integers of the same size.
_MULTIPLIED = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


def is_shared_out(tensor: Tensor) -> bool:
    """Whether torch would copy this host tensor with several threads.

    torch would keep those threads as long as the calling thread lives.
    """
    return tensor.device.type == "cpu" and tensor.numel() >= _GRAIN


def copy_alone(source: Tensor, to: Tensor) -> None:
    """Copy contiguous host memory in this thread alone, with the GIL released."""
    ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)


def _copied(source: Tensor) -> Tensor:
    copy = torch.empty_like(source)
    copy_alone(source, copy)
    return copy


_GRAIN = 32768  # elements: torch's own threshold
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dressed(cut: Tensor, like: Any) -> Tensor:
    """A view of the same memory with the conjugate bit, negative bit and names of another tensor."""
    if like.is_conj():
        cut = cut.conj()
    if like.is_neg():
        cut = torch._neg_view(cut)
    if NAMED_TENSORS and like.has_names():
        cut.names = like.names  # type: ignore[attr-defined]
    return cut


def undressed(tensor: Tensor) -> Tensor:
    """A view of the same memory without conjugate and negative bit."""
    plain = torch._neg_view(tensor) if tensor.is_neg() else tensor
    return plain.conj() if plain.is_conj() else plain
