"""Windows, cut on the copy of a storage; and many storages made of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmove._records import Block, Window
from torchmove._storage.reach import packed
from torchmove._storage.reading import NAMED_TENSORS, has_storage


def apart(slab: Tensor, like: list[Tensor]) -> Sequence[Tensor]:
    """The parts of a flat tensor, each shaped as its like and in a storage of its own, bit for bit."""
    if slab.device.type != "cuda" or slab.dtype.itemsize not in BITS:
        several: Any = torch.split_with_sizes_copy  # torch's stubs know only the form that fills given tensors
        parts = several(slab, list(map(Tensor.numel, like)))
        return [part if each.dim() == 1 else part.view(each.shape) for part, each in zip(parts, like, strict=True)]
    # On a GPU: one kernel for many tensors, where copying takes one for each. It computes something that leaves every
    # bit as it is; torch's own copy of many does not, and most arithmetic on floats neither.
    if slab.dtype in (torch.float32, torch.float64):
        return torch._foreach_clamp_max(torch._C._nn.unflatten_dense_tensors(slab, like), math.inf)
    bits = BITS[slab.dtype.itemsize]
    copies = torch._foreach_add(torch._C._nn.unflatten_dense_tensors(slab.view(bits), like), 0)
    return copies if slab.dtype is bits else [copy.view(slab.dtype) for copy in copies]


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
