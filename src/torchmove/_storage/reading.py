"""Storages and windows, read: many tensors at once, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from torchmove._records import Looks, Slots, Window, Windows
from torchmove._shells import PLAIN

# Tensors are read in columns, but not so many at once that they fall out of the processor's cache in between.
AT_ONCE = 1000

_WITH_STORAGE = {"cpu", "cuda", "xpu", "mps", "meta"}
NAMED_TENSORS = hasattr(Tensor, "has_names")  # torch 2.13 has given them up


def look_all(tensors: Sequence[Tensor]) -> Looks:
    """Read strided tensors. C code mapped over them is quicker than a loop.

    On a device without storages (XLA's kind) a tensor travels whole.
    """
    devices = list(map(_device, tensors))
    different = set(devices)
    if len(different) == 1:
        devices = [*different] * len(tensors)  # one object for all of them
    if not all(map(has_storage, {device.type for device in different})):
        looks = Looks([], [], [], [])
        for tensor in tensors:
            looks.extend((look_all if has_storage(tensor.device.type) else look_at_wholes)([tensor]))
        return looks
    storages = list(map(Tensor.untyped_storage, tensors))
    sizes = list(map(UntypedStorage.nbytes, storages))
    return Looks(devices, list(map(_nbytes, tensors)), list(map(_cdata, storages)), sizes)


_device, _nbytes, _cdata = map(attrgetter, ("device", "nbytes", "_cdata"))


def look_at_wholes(tensors: Sequence[Tensor]) -> Looks:
    """Read tensors that travel whole: each gets a storage of its own, of -1 bytes."""
    nbytes = [tensor.numel() * tensor.dtype.itemsize for tensor in tensors]
    keys = [-id(tensor) for tensor in tensors]
    return Looks([tensor.device for tensor in tensors], nbytes, keys, [-1] * len(tensors))


def in_shared_memory(tensors: Sequence[Tensor]) -> Iterator[bool]:
    """Of tensors on the CPU: can other processes see the storage too?"""
    return map(UntypedStorage.is_shared, map(Tensor.untyped_storage, tensors))


def multiplied_bytes(rows: Tensor, columns: Tensor) -> Tensor:
    """The product of two matrices of int8, in int32. More than 16 rows; columns in multiples of 8."""
    return torch._int_mm(rows, columns)


@cache
def has_storage(device_type: str) -> bool:
    """Do tensors on this kind of device look at storages? Asks the device once, unless it is one of torch's own."""
    if device_type in _WITH_STORAGE:
        return True
    try:
        return torch.empty(1, device=device_type).untyped_storage().data_ptr() != 0
    except torch.OutOfMemoryError:
        raise  # no answer, and not one to remember
    except (RuntimeError, ImportError, AssertionError):
        return False


def windows_of(slots: Slots) -> Windows:
    """What each tensor shows of its storage; of one that travels whole, what can be told."""
    tensors, sizes = slots.tensors, slots.looks.storage_bytes
    if not set(map(type, tensors)) <= PLAIN or (sizes and min(sizes) < 0):
        rows = [(_whole_window if size < 0 else window_of)(tensor) for tensor, size in zip(tensors, sizes, strict=True)]
        return Windows(*map(list, zip(*rows, strict=True)))
    windows = Windows([], [], [], [], [])
    for start in range(0, len(tensors), AT_ONCE):
        some = tensors[start : start + AT_ONCE]
        for column, read in zip(windows, _READ, strict=True):
            column.extend(map(read, some))  # type: ignore[attr-defined]
    return windows


# In the order of the columns.
_READ: tuple[Callable[[Tensor], Any], ...] = (
    attrgetter("dtype"),
    attrgetter("shape"),
    Tensor.stride,
    Tensor.storage_offset,
    attrgetter("requires_grad"),
)


def window_of(tensor: Tensor) -> Window:
    # A class of its own may answer otherwise: an uninitialised parameter refuses to tell its shape.
    data = tensor if type(tensor) in PLAIN else tensor.data
    return Window(data.dtype, data.shape, data.stride(), int(data.storage_offset()), tensor.requires_grad)


def _whole_window(tensor: Tensor) -> Window:
    shape = torch.Size((tensor.numel(),)) if tensor.is_nested else tensor.shape
    return Window(tensor.dtype, shape, (), 0, tensor.requires_grad)
