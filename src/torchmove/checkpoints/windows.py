"""Is a tensor within its storage? And how much of a storage do its tensors show?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from torchmove.checkpoints.refusing import Unfit
from torchmove.checkpoints.values import Stored, Tensor, Window

_MOST_BYTES = 1 << 63  # what torch itself can count
_MOST_DIMENSIONS = 64


def count(numbers: Any) -> tuple[int, ...]:
    """Sizes, strides and offsets: whole numbers from zero on."""
    if isinstance(numbers, (list, tuple)) and all(type(each) is int and 0 <= each < _MOST_BYTES for each in numbers):
        return tuple(numbers)
    raise Unfit("R066", "a size, stride or offset in it is no size, stride or offset")


def checked(storage: Stored | None, window: Window, other: tuple[Any, ...]) -> Tensor:
    """The tensor, if all that it shows is there. Without a storage it is a meta tensor."""
    size, stride, (offset,) = count(window.size), count(window.stride), count([window.offset])
    if not isinstance(window.dtype, torch.dtype) or not (storage is None or isinstance(storage, Stored)):
        raise Unfit("R065", "its pickle makes a tensor of something that is no storage")
    window = Window(window.dtype, offset, size, stride)
    elements = f"a tensor of shape {list(size)[:8]} and {window.dtype}"
    if len(size) != len(stride) or len(size) > _MOST_DIMENSIONS:
        raise Unfit("R066", f"a tensor of {len(size)} dimensions has {len(stride)} strides")
    if nbytes(window) >= _MOST_BYTES:
        raise Unfit("R066", f"{elements} is larger than any memory")
    if storage is not None and extent(window)[1] > storage.nbytes:
        raise Unfit("R066", f"{elements} reads past the end of its storage {storage.key!r} of {storage.nbytes} bytes")
    return Tensor(window, storage, (), other)


def nbytes(window: Window) -> int:
    return math.prod(window.size) * window.dtype.itemsize


def extent(window: Window) -> tuple[int, int]:
    """The first byte that a tensor shows, and the one after the last."""
    if 0 in window.size:
        return 0, 0
    last = window.offset + sum((size - 1) * stride for size, stride in zip(window.size, window.stride, strict=True))
    return window.offset * window.dtype.itemsize, (last + 1) * window.dtype.itemsize


def shown_bytes(windows: Iterable[Window]) -> int:
    """How many bytes of one storage the windows on it show together: at most this many, and exactly for most."""
    # In order, not in a set: strides can be chosen so that all have one hash.
    different, before = [], None
    for window in sorted(windows, key=_shown):
        if before is None or _shown(window) != _shown(before):
            different.append(window)
        before = window
    return min(_covered(sorted(map(extent, different))), sum(map(_distinct, different)))


def _shown(window: Window) -> tuple[Any, ...]:
    return window.offset, window.size, window.stride, window.dtype.itemsize


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _distinct(window: Window) -> int:
    """An expanded tensor shows the same bytes many times."""
    sizes = (1 if stride == 0 and size else size for size, stride in zip(window.size, window.stride, strict=True))
    return math.prod(sizes) * window.dtype.itemsize


def _covered(extents: Sequence[tuple[int, int]]) -> int:
    covered = reached = 0
    for first, end in extents:
        covered += max(0, end - max(first, reached))
        reached = max(reached, end)
    return covered
