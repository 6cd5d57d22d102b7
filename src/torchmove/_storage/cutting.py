"""Windows, cut on the copy of a storage; and many storages made of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmove._records import Block, Window
from torchmove._storage.reach import packed
from torchmove._storage.reading import NAMED_TENSORS, has_storage


def apart(slab: Tensor, counts: list[int]) -> Sequence[Tensor]:
    """The parts of a flat tensor, each in a storage of its own, bit for bit."""
    bits = BITS.get(slab.dtype.itemsize)
    if slab.device.type != "cuda" or bits is None:
        parts: Any = torch.split_with_sizes_copy  # torch's stubs know only the form that fills given tensors
        return parts(slab, counts)  # type: ignore[no-any-return]
    # Adding zero to all of them takes few kernels where copying takes one each. To integers: arithmetic does not leave
    # every bit of a float as it is, and neither does torch's own copy of many at once.
    parts = torch._foreach_add(slab.view(bits).split_with_sizes(counts), 0)
    return parts if slab.dtype is bits else [part.view(slab.dtype) for part in parts]


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def cut(base: Tensor, tensor: Tensor, window: Window, block: Block) -> Tensor:
    """The tensor's window, cut on `base`, the copy of its block."""
    if tensor.is_inference():
        with torch.inference_mode():
            return _dressed(_cut(base, window, block), tensor)
    return _dressed(_cut(base, window, block), tensor)


def _dressed(cut: Tensor, like: Any) -> Tensor:
    if like.is_conj():
        cut = cut.conj()
    if like.is_neg():
        cut = torch._neg_view(cut)
    if NAMED_TENSORS and like.has_names():
        cut.names = like.names  # type: ignore[attr-defined]
    return cut


def _cut(base: Tensor, window: Window, block: Block) -> Tensor:
    if block.opaque:
        return base
    first, size = window.offset * window.dtype.itemsize, window.dtype.itemsize
    shift = next((at - start for start, stop, at in packed(block.spans)[0] if start <= first < stop), -first)
    offset = (first + shift) // size
    if not has_storage(base.device.type):
        # Its base is a flat tensor of the one dtype that all windows have.
        return base.as_strided(window.shape, window.stride, offset)
    empty = torch.empty(0, dtype=window.dtype, device=base.device)
    return empty.set_(base.untyped_storage(), offset, window.shape, window.stride)
