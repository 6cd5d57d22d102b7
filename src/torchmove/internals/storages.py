"""Storages, and the tensors that are views of them: read many at a time, in columns; cut, copied and made again."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter, or_
from typing import Any, NamedTuple

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


def is_view_of_storage(tensor: Tensor) -> bool:
    """Whether the tensor is a view of one storage, as nearly every tensor is."""
    plain = type(tensor) in PLAIN or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    return plain and _form(tensor) == _STRIDED


_form = attrgetter("layout", "is_nested", "is_quantized")
_STRIDED = (torch.strided, False, False)


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


# ---------------------------------------------------------------- views, and copies of the bytes that they reach

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


def gathered(source: Tensor, spans: Sequence[tuple[int, int]], target: torch.device) -> Tensor:
    """A flat copy of some spans of a tensor's storage. On a device without storages it has the tensor's dtype."""
    places, size = packed(spans)
    if has_storage(target.type):
        base = torch.empty(size, dtype=torch.uint8, device=target)
    else:
        base = torch.zeros(-(-size // 16) * 16, dtype=torch.uint8, device="cpu")
    for start, stop, begin in places:
        base[begin : begin + stop - start].copy_(bytes_of(source, start, stop))
    return base if has_storage(target.type) else base.view(source.dtype).to(target)


def view_on(
    base: Tensor, tensor: Tensor, spans: Sequence[tuple[int, int]], offset: int | None, *, dtype: torch.dtype | None
) -> Tensor:
    """The view that a tensor becomes on `base`, a copy of these spans of its storage.

    `offset`: that of the tensor in the old storage, where that is not its own `storage_offset()`. `dtype`: that of the
    copy, where it is another one.
    """
    view = view_of(tensor)
    if offset is not None:
        view = view._replace(offset=offset)
    if tensor.is_inference():
        with torch.inference_mode():
            return dressed(_view_on(base, view, spans, dtype or view.dtype), tensor)
    return dressed(_view_on(base, view, spans, dtype or view.dtype), tensor)


def _view_on(base: Tensor, view: View, spans: Sequence[tuple[int, int]], dtype: torch.dtype) -> Tensor:
    first, size = view.offset * view.dtype.itemsize, view.dtype.itemsize
    shift = next((at - start for start, stop, at in packed(spans)[0] if start <= first < stop), -first)
    offset = (first + shift) // size
    if not has_storage(base.device.type):
        # The base is a flat tensor of the dtype that all its views have.
        return base.as_strided(view.shape, view.stride, offset)
    return make_view(base.untyped_storage(), view._replace(dtype=dtype, offset=offset))


def view_of_all(copy: Tensor) -> Tensor:
    """Another tensor on the storage of a copy, the same view; on a device without storages the copy itself."""
    return make_view(copy.untyped_storage(), view_of(copy)) if has_storage(copy.device.type) else copy


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


# ---------------------------------------------------------------- holders of storages, and memory that is shared

_cdata = attrgetter("_cdata")


def storage_key(holder: Tensor | UntypedStorage) -> int | None:
    """The identity of a tensor's storage; None where it has no storage."""
    try:
        storage = holder.untyped_storage() if isinstance(holder, Tensor) else holder
        return int(storage._cdata)
    except Exception:  # an uninitialized parameter, or a subclass, raises exceptions of its own
        return None


def storage_device(storage: Any) -> torch.device:
    """The device of a storage. The public attributes of a TypedStorage emit a deprecation warning."""
    return getattr(storage, "_untyped_storage", storage).device  # type: ignore[no-any-return]


def held_elsewhere(storages: Sequence[UntypedStorage], tensors: int = 0) -> Iterable[bool]:
    """For each storage, whether anything but the given list and this many tensors holds it."""
    holders = list(map(torch._C._storage_Use_Count, map(_cdata, storages)))
    # The Python object in the list counts as one holder. A storage has a single Python object: further references to
    # that show in its reference count, not in the storage's use count.
    references, expected = list(map(sys.getrefcount, storages)), _references_in_list(seen=tensors > 0)
    if sum(holders) == len(storages) * (tensors + 1) and sum(references) == len(storages) * expected:
        return repeat(False, len(storages))  # no count can be lower, so equal sums mean that none is higher
    return map(or_, map((tensors + 1).__lt__, holders), map(expected.__lt__, references))


@cache
def _references_in_list(*, seen: bool) -> int:
    """The reference count that `map` sees of a storage object that is only in one list.

    Newer versions of torch count one more if a tensor is on the storage (`seen`).
    """
    tensor = torch.empty(1, device="cpu")
    alone = [tensor.untyped_storage()]
    if not seen:
        del tensor
    (count,) = map(sys.getrefcount, alone)
    return count


def is_sole_owner(tensor: Tensor) -> bool:
    """Whether torch allocated a tensor's memory (not numpy or a file), and nothing else holds its storage."""
    storages = [tensor.untyped_storage()]
    return storages[0].resizable() and not any(held_elsewhere(storages, tensors=1))


class Watch:
    """Tells whether a storage is still alive, by a weak reference."""

    _weak: Any = None

    def __init__(self, storage: UntypedStorage) -> None:
        self.storage = storage._cdata
        self._weak = storage._weak_ref()

    def alive(self) -> bool:
        return not UntypedStorage._expired(self._weak)

    def __del__(self) -> None:
        if self._weak is not None:
            UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]


_address: Callable[[Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]  # of the storage


class SharedRange(NamedTuple):
    """The range of a storage within memory that several storages share."""

    memory: int  # the id of the first of these storages
    address: int
    nbytes: int  # of the memory
    start: int  # of the storage, in that memory


class _Reach(NamedTuple):
    """The addresses that the tensors on a storage reach, and the start and end of the storage."""

    first: int
    stop: int
    address: int
    end: int
    storage: int


def shared_ranges(tensors: Sequence[Tensor], metadata: Metadata) -> dict[int, SharedRange]:
    """For every storage with tensors that overlap those on another storage: its range in the shared memory."""
    if all(metadata.resizables):  # only memory that torch did not allocate can be under two storages
        return {}
    places: dict[int, SharedRange] = {}
    for reaches in _reaches(tensors, metadata).values():
        for together in _overlapping(sorted(reaches)):
            address, end = min(each.address for each in together), max(each.end for each in together)
            memory = together[0].storage
            for each in together:
                places[each.storage] = SharedRange(memory, address, end - address, each.address - address)
    return places


def _reaches(tensors: Sequence[Tensor], metadata: Metadata) -> dict[torch.device, list[_Reach]]:
    extents: defaultdict[tuple[torch.device, int], list[tuple[int, int, int, int]]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        size = metadata.storage_bytes[index]
        address = _address(tensor) if size > 0 < metadata.nbytes[index] else 0
        if address:
            first, stop = view_of(tensor).extent
            on = metadata.devices[index], metadata.storage_ids[index]
            extents[on].append((address + first, address + stop, address, address + size))
    reaches: defaultdict[torch.device, list[_Reach]] = defaultdict(list)
    for (device, storage), several in extents.items():
        firsts, stops, addresses, ends = zip(*several, strict=True)
        reaches[device].append(_Reach(min(firsts), max(stops), addresses[0], ends[0], storage))
    return reaches


def _overlapping(reaches: Sequence[_Reach]) -> Iterator[list[_Reach]]:
    together: list[_Reach] = []
    stop = 0
    for each in reaches:
        if each.first >= stop:
            if len(together) > 1:
                yield together
            together = []
        together.append(each)
        stop = max(stop, each.stop)
    if len(together) > 1:
        yield together
