"""Storages and windows, read: many tensors at once, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

from torchmove.internals.modes import plain_torch, without_modes

# Tensors are read in columns, but not so many at once that they fall out of the processor's cache in between.
AT_ONCE = 1000

_DEVICES: dict[torch.device, torch.device] = {}  # the object that stands for each: equal at a glance
_WITH_STORAGE = {"cpu", "cuda", "xpu", "mps", "meta"}
SUB_BYTE = {getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in range(1, 8)}
COPIED_AS_BYTES = {torch.bool, *SUB_BYTE}  # torch's copy makes 0 or 1 of every bool, and has no kernel for the others
NAMED_TENSORS = hasattr(Tensor, "has_names")  # torch 2.13 has given them up


def read_metadata(tensors: Sequence[Tensor]) -> Metadata | None:
    """Read windows on storages. C code mapped over them is quicker than a loop.

    None: they are not all that. A sparse tensor shows no storage, a nested one no shape, and neither is asked before.
    """
    devices = list(map(_device, tensors))
    different = set(devices)
    if not all(has_storage(device.type) for device in different):
        return None
    known = {device: _DEVICES.setdefault(device, device) for device in different}
    devices = list(map(known.__getitem__, devices)) if len(known) > 1 else [*known.values()] * len(tensors)
    try:
        storages = list(map(Tensor.untyped_storage, tensors))
        shapes = list(map(_shape, tensors))
    except (NotImplementedError, RuntimeError):
        return None
    dtypes = list(map(_dtype, tensors))
    if not _QUANTIZED.isdisjoint(dtypes):
        return None
    return Metadata(
        devices,
        list(map(_nbytes, tensors)),
        list(map(_cdata, storages)),
        list(map(UntypedStorage.nbytes, storages)),
        dtypes,
        shapes,
        list(map(Tensor.stride, tensors)),
        list(map(_requires_grad, tensors)),
        list(map(UntypedStorage.resizable, storages)),
    )


_device, _nbytes, _cdata, _dtype, _shape, _requires_grad = map(
    attrgetter, ("device", "nbytes", "_cdata", "dtype", "shape", "requires_grad")
)
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}


@plain_torch
def in_shared_memory(tensors: Sequence[Tensor]) -> list[bool]:
    """Of windows on host memory: can other processes see it too?"""
    return list(map(UntypedStorage.is_shared, map(Tensor.untyped_storage, tensors)))


def read_metadata_of_any(tensors: Sequence[Tensor]) -> Metadata:
    """Read windows of any class and on any device. On one without storages (XLA's kind) a tensor travels whole."""
    # A class of its own may answer otherwise: an uninitialised parameter refuses to tell its shape.
    plain = [tensor if type(tensor) in PLAIN else tensor.data for tensor in tensors]
    metadata = read_metadata(plain)
    if metadata is None:
        metadata = Metadata.none()
        for tensor, data in zip(tensors, plain, strict=True):
            # Told apart by the tensor itself: `.data` is a new object at every look.
            metadata.extend(
                read_metadata([data]) or read_metadata_of_wholes([data])._replace(storage_ids=[-id(tensor)])
            )
    return metadata._replace(requires_grads=list(map(_requires_grad, tensors)))


def read_metadata_of_wholes(tensors: Sequence[Tensor]) -> Metadata:
    """Read tensors that travel whole: each gets a storage of its own, of -1 bytes."""
    count = len(tensors)
    return Metadata(
        [tensor.device for tensor in tensors],
        [tensor.numel() * tensor.dtype.itemsize for tensor in tensors],
        [-id(tensor) for tensor in tensors],
        [-1] * count,
        [tensor.dtype for tensor in tensors],
        [torch.Size(shape_of(tensor)) for tensor in tensors],
        [()] * count,
        [tensor.requires_grad for tensor in tensors],
        [True] * count,
    )


def multiplied_bytes(rows: Tensor, columns: Tensor) -> Tensor:
    """The product of two matrices of int8, in int32. More than 16 rows; columns in multiples of 8."""
    return torch._int_mm(rows, columns)


@cache
def has_storage(device_type: str) -> bool:
    """Do tensors on this kind of device look at storages? Asks the device once, unless it is one of torch's own."""
    if device_type in _WITH_STORAGE:
        return True
    try:
        with without_modes():  # the answer is for all, also for those who ask without them
            return torch.empty(1, device=device_type).untyped_storage().data_ptr() != 0
    except torch.OutOfMemoryError:
        raise  # no answer, and not one to remember
    except (RuntimeError, ImportError, AssertionError):
        return False


def view_of(tensor: Tensor) -> View:
    data = tensor if type(tensor) in PLAIN else tensor.data
    return View(data.dtype, data.shape, data.stride(), int(data.storage_offset()))


def offset_of(tensor: Tensor) -> int:
    return int((tensor if type(tensor) in PLAIN else tensor.data).storage_offset())


class Metadata(NamedTuple):
    """What slots record of their tensors, in columns: where they are, what they look at, and what they show of it."""

    devices: list[torch.device]
    nbytes: list[int]
    storage_ids: list[int]
    storage_bytes: list[int]
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    strides: list[tuple[int, ...]]
    requires_grads: list[bool]
    resizables: list[bool]  # False: another storage may look at the same memory

    @classmethod
    def none(cls) -> Metadata:
        return cls([], [], [], [], [], [], [], [], [])

    def view(self, index: int, offset: int) -> View:
        return View(self.dtypes[index], self.shapes[index], self.strides[index], offset)

    def is_like(self, other: Metadata) -> bool:
        """Nothing differs but whether storages can be resized: `tensor.numpy()` changes that."""
        return self[:-1] == other[:-1]

    def extend(self, more: Metadata) -> None:
        for column, rest in zip(self, more, strict=True):
            column.extend(rest)  # type: ignore[attr-defined]


class View(NamedTuple):
    """What a tensor shows of its storage."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def moved(self, nbytes: int) -> View:
        """The same of a storage that begins so many bytes before this one."""
        return self._replace(offset=self.offset + nbytes // self.dtype.itemsize)

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte that it reaches, and the first behind."""
        reach = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return self.offset * self.dtype.itemsize, (self.offset + reach + 1) * self.dtype.itemsize


def shape_of(tensor: Tensor) -> Sequence[int]:
    """As far as it has one: an uninitialised parameter has none yet, a nested tensor many."""
    return () if is_lazy(tensor) or tensor.is_nested else tensor.shape


PLAIN = {Tensor, nn.Parameter}


def coordinates_of(sparse: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and values of a sparse tensor, also of one that is not coalesced."""
    return sparse._indices(), sparse._values()
