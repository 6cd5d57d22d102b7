"""Storages and windows on them: reading, cutting, rebinding. The only file that touches torch's private names.

A tensor is a window on a storage: shape, stride, offset, dtype, and whether it is read conjugated or negated. A window
can be cut on the copy of a storage, and a tensor made to look through it while it stays the same object. There are two
ways to do that, and torch says which one a pair of devices allows:

- `tensor.data = window` (cpu, cuda, xpu, mps; also between two devices of one kind). Hooks, version and the gradient
  stay with the tensor.
- swapping the implementation under the Python object (everywhere else, and for tensors made of tensors). Hooks and
  version are handed over; the gradient is set again once both it and its tensor are swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from torchmove._records import Block, Slot, Window
from torchmove._shells import PLAIN

# Copies keep every reachable byte at the same place within a line of this many bytes, so that kernels that look at the
# alignment of their input take the same path as before.
LINE_BYTES = 64
# Unreached bytes are left out where there are at least this many: less is not worth a copy of its own.
GAP_BYTES = 4096

_WITH_STORAGE = {"cpu", "cuda", "xpu", "mps", "meta"}
_NAMED_TENSORS = hasattr(Tensor, "has_names")  # torch 2.13 has given them up


class Looks(NamedTuple):
    """What slots record of their tensors, in columns: device, bytes, storage, and the bytes of that."""

    devices: list[torch.device]
    nbytes: list[int]
    storages: list[int]
    storage_bytes: list[int]

    def extend(self, more: Looks) -> None:
        for column, rest in zip(self, more, strict=True):
            column.extend(rest)  # type: ignore[attr-defined]


def look_all(tensors: Sequence[Tensor]) -> Looks:
    """Read strided tensors. C code mapped over them takes half the time of a loop.

    On a device without storages (XLA's kind) a tensor travels whole.
    """
    devices = list(map(_device, tensors))
    if not all(map(has_storage, {device.type for device in set(devices)})):
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


def storage_key(holder: Tensor | UntypedStorage) -> int | None:
    """What tells the storage of a tensor apart from all others; None where it shows none."""
    try:
        storage = holder.untyped_storage() if isinstance(holder, Tensor) else holder
        return int(storage._cdata)
    except (NotImplementedError, RuntimeError):
        return None


# ---------------------------------------------------------------- windows, and what they reach


def windows_of(slots: Sequence[Slot]) -> list[Window]:
    """What each tensor shows of its storage; of one that travels whole, what can be told."""
    return [_whole_window(slot.tensor) if slot.storage_bytes < 0 else _window(slot.tensor) for slot in slots]


def _window(tensor: Tensor) -> Window:
    # A class of its own may answer otherwise: an uninitialised parameter refuses to tell its shape.
    data = tensor if type(tensor) in PLAIN else tensor.data
    return Window(data.dtype, data.shape, data.stride(), int(data.storage_offset()), tensor.requires_grad)


def _whole_window(tensor: Tensor) -> Window:
    shape = torch.Size((tensor.numel(),)) if tensor.is_nested else tensor.shape
    return Window(tensor.dtype, shape, (), 0, tensor.requires_grad)


def reached(slots: Sequence[Slot]) -> tuple[tuple[int, int], ...]:
    """The spans of a storage's bytes that the slots reach, each from the start of a line, with gaps between."""
    spans: list[tuple[int, int]] = []
    for first, stop in sorted(_window(slot.tensor).extent for slot in slots if slot.nbytes):
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


def bytes_of(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some bytes of the storage that a tensor looks at, as a tensor of bytes."""
    if tensor._is_zerotensor():
        raise RuntimeError("a tensor has no memory behind it (forward-mode AD makes such zeros): clone it first")
    window = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return window.set_(tensor.untyped_storage(), start, (stop - start,), (1,))


# ---------------------------------------------------------------- cutting a window on a copy


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
    if _NAMED_TENSORS and like.has_names():
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


# ---------------------------------------------------------------- rebinding: the same object, another window


class Rebinding(NamedTuple):
    """A tensor, the window it shall look through, and the way there."""

    tensor: Tensor
    window: Tensor
    by_swap: bool


def rebinding(tensor: Tensor, window: Tensor, *, moving: Container[int]) -> Rebinding:
    """How to rebind a tensor, given the ids of all tensors that move with it."""
    compatible = torch._has_compatible_shallow_copy_type(tensor, window)
    return Rebinding(tensor, window, not compatible or _is_loose_view(tensor, moving))


def shell_rebinding(tensor: Tensor, rebuilt: Tensor) -> Rebinding:
    # A compressed sparse tensor takes `.data =` without a word and keeps its old values: shells are always swapped.
    return Rebinding(tensor, rebuilt, by_swap=True)


def _is_loose_view(tensor: Tensor, moving: Container[int]) -> bool:
    """A view holds its base. If that is not rebound too (mostly nobody has it), it would hold the old storage for ever;
    a new implementation is a view of nothing. A negated view holds the conjugated one that it came through besides."""
    return tensor._is_view() and (tensor.is_neg() or id(tensor._base) not in moving)


Undo = list[Callable[[], None]]


def rebind(each: Rebinding, undo: Undo) -> None:
    """Make a tensor look through its new window, with the way back on the undo list."""
    if each.by_swap:
        _rebind_by_swap(each, undo)
    else:
        _rebind_data(each, undo)


class Gradients:
    """The gradients of some tensors, to be set again after the two have been rebound.

    Autograd holds the implementation of a gradient, not its object: they are read before the first swap.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        leaves = (tensor for tensor in tensors if tensor.is_leaf)
        self._pairs = [(tensor, tensor.grad) for tensor in leaves if tensor.grad is not None]

    def set(self) -> None:
        for tensor, gradient in self._pairs:
            tensor.grad = gradient


def _rebind_data(each: Rebinding, undo: Undo) -> None:
    tensor, before = each.tensor, _data(each.tensor)
    undo.append(lambda: _set_data(tensor, before))
    _set_data(tensor, each.window)


def _data(tensor: Tensor) -> Tensor:
    if tensor.is_inference():
        with torch.inference_mode():
            return tensor.data
    return tensor.data


def _set_data(tensor: Tensor, window: Tensor) -> None:
    # `.data =` takes over whether the window is an inference tensor, so the two must agree.
    if window.is_inference():
        with torch.inference_mode():
            tensor.data = window
    else:
        tensor.data = window


def _rebind_by_swap(each: Rebinding, undo: Undo) -> None:
    tensor, other = each.tensor, each.window
    if tensor.is_leaf:
        other.requires_grad_(tensor.requires_grad)
    if not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((other,), (tensor._version,))
    hooks, late_hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    before = tensor._cdata
    # A second swap undoes the first, and only then: whatever is raised, before or after, is told by what is there now.
    undo.append(lambda: torch._C._swap_tensor_impl(tensor, other) if tensor._cdata != before else None)
    torch._C._swap_tensor_impl(tensor, other)
    # The dicts of hooks stay with the object; the new implementation has to be told of them.
    if hooks is not None:
        tensor._backward_hooks = hooks
    if late_hooks is not None:
        tensor._post_accumulate_grad_hooks = late_hooks


@contextmanager
def plain_torch() -> Iterator[None]:
    """No autograd, no inference mode, no tensor subclass in between, whatever the caller has switched on."""
    with torch.inference_mode(mode=False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


# ---------------------------------------------------------------- storages, watched


class Watch:
    """Tells whether a storage is still alive, without keeping it so."""

    _weak: Any = None

    def __init__(self, storage: UntypedStorage) -> None:
        self.storage = storage._cdata
        self._weak = storage._weak_ref()

    def alive(self) -> bool:
        return not UntypedStorage._expired(self._weak)

    def __del__(self) -> None:
        if self._weak is not None:
            UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]
