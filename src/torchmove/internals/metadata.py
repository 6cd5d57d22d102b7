"""Read storages and views of many tensors at once, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

from torchmove.internals.guards import plain_torch, without_modes

# How many tensors to read at once: more would no longer fit in the processor's cache between two columns.
AT_ONCE = 1000

_DEVICES: dict[torch.device, torch.device] = {}  # one object for each device, so that equal devices compare by identity
_WITH_STORAGE = {"cpu", "cuda", "xpu", "mps", "meta"}
SUB_BYTE = {getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in range(1, 8)}
COPIED_AS_BYTES = {torch.bool, *SUB_BYTE}  # torch's copy turns every bool into 0 or 1, and has no kernel for the others
NAMED_TENSORS = hasattr(Tensor, "has_names")  # removed in torch 2.13


def read_metadata(tensors: Sequence[Tensor]) -> Metadata | None:
    """Read tensors that are views of storages. C functions mapped over them are faster than a loop.

    None: some are not views of storages. A sparse tensor has no storage, a nested one no shape.
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
    """For each tensor in host memory: whether other processes can access its memory."""
    return list(map(UntypedStorage.is_shared, map(Tensor.untyped_storage, tensors)))


def read_metadata_of_any(tensors: Sequence[Tensor]) -> Metadata:
    """Read tensors of any class, on any device. On a device without storages (XLA), a tensor is copied as a whole."""
    # A subclass may override these: an uninitialized parameter raises for its shape.
    plain = [tensor if type(tensor) in PLAIN else tensor.data for tensor in tensors]
    metadata = read_metadata(plain)
    if metadata is None:
        metadata = Metadata.none()
        for tensor, data in zip(tensors, plain, strict=True):
            # Identified by the tensor itself: `.data` returns a new object each time.
            metadata.extend(
                read_metadata([data]) or read_metadata_of_wholes([data])._replace(storage_ids=[-id(tensor)])
            )
    return metadata._replace(requires_grads=list(map(_requires_grad, tensors)))


def read_metadata_of_wholes(tensors: Sequence[Tensor]) -> Metadata:
    """Read tensors that are copied as a whole: each gets a storage of its own, of -1 bytes."""
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
    """The product of two int8 matrices, in int32. Needs more than 16 rows, and columns in multiples of 8."""
    return torch._int_mm(rows, columns)


@cache
def has_storage(device_type: str) -> bool:
    """Whether tensors on this device type have storages. Tries it once, unless it is a device type of torch itself."""
    if device_type in _WITH_STORAGE:
        return True
    try:
        with without_modes():  # the result is cached for calls without these modes too
            return torch.empty(1, device=device_type).untyped_storage().data_ptr() != 0
    except torch.OutOfMemoryError:
        raise  # says nothing about storages, and must not be cached
    except (RuntimeError, ImportError, AssertionError):
        return False


def view_of(tensor: Tensor) -> View:
    data = tensor if type(tensor) in PLAIN else tensor.data
    return View(data.dtype, data.shape, data.stride(), int(data.storage_offset()))


def offset_of(tensor: Tensor) -> int:
    return int((tensor if type(tensor) in PLAIN else tensor.data).storage_offset())


class Metadata(NamedTuple):
    """The metadata of tensors, in columns: devices, storages, dtypes and views."""

    devices: list[torch.device]
    nbytes: list[int]
    storage_ids: list[int]
    storage_bytes: list[int]
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    strides: list[tuple[int, ...]]
    requires_grads: list[bool]
    resizables: list[bool]  # False: another storage may be over the same memory

    @classmethod
    def none(cls) -> Metadata:
        return cls([], [], [], [], [], [], [], [], [])

    def view(self, index: int, offset: int) -> View:
        return View(self.dtypes[index], self.shapes[index], self.strides[index], offset)

    def is_like(self, other: Metadata) -> bool:
        """Whether both agree, except in whether storages can be resized: `tensor.numpy()` changes that."""
        return self[:-1] == other[:-1]

    def extend(self, more: Metadata) -> None:
        for column, rest in zip(self, more, strict=True):
            column.extend(rest)  # type: ignore[attr-defined]


class View(NamedTuple):
    """A view of a storage: dtype, shape, stride and offset."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def moved(self, nbytes: int) -> View:
        """The same view, of a storage that starts this many bytes earlier."""
        return self._replace(offset=self.offset + nbytes // self.dtype.itemsize)

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte of the storage that the view reaches, and the one after the last."""
        reach = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return self.offset * self.dtype.itemsize, (self.offset + reach + 1) * self.dtype.itemsize


def shape_of(tensor: Tensor) -> Sequence[int]:
    """The shape, or () for an uninitialized parameter, which has none, and for a nested tensor, which has several."""
    return () if is_lazy(tensor) or tensor.is_nested else tensor.shape


PLAIN = {Tensor, nn.Parameter}


def coordinates_of(sparse: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and values of a sparse tensor, also of one that is not coalesced."""
    return sparse._indices(), sparse._values()
