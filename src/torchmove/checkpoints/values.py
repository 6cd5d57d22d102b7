"""Stand-ins for the objects of a pickle, so that none of them is created: storages, tensors, globals and others.

Lists, tuples, plain dicts, numbers, strings and dtypes are themselves.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from torchmove.checkpoints.source import Unfit
from torchmove.surveying.paths import ATTRIBUTE, CALL, ITEM, KEY, KEYED, MEMBER, ROOT

LONGEST_PLACE = 100  # characters of a device name
PLAIN = (str, int, float, bool, complex, bytes, type(None), torch.dtype)


class ShortText(str):
    """A string short enough to name a device, and the position of the opcode that pushed it."""

    __slots__ = ("start",)
    start: int


class Global:
    """A GLOBAL: a class, function or constant, by its full name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class PickledDevice:
    """A torch.device."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"device({self.text!r})"


class PersistentStorage:
    """A storage: a record of the archive. `device` is the device of its tensors, which for XLA is not `location`."""

    __slots__ = ("device", "dtype", "key", "location", "nbytes")

    def __init__(self, key: str, dtype: torch.dtype, nbytes: int, location: str) -> None:
        self.key, self.dtype, self.nbytes, self.location, self.device = key, dtype, nbytes, location, location


class Dict(dict[Any, Any]):
    """An OrderedDict or a Counter; `state` is its attributes."""

    __slots__ = ("kind", "state")

    def __init__(self, kind: str, pairs: Any = ()) -> None:
        super().__init__(pairs)
        self.kind = kind
        self.state: dict[Any, Any] = {}


class SetItems(list[Any]):
    """A set, as a list of its items."""


class PickledView(NamedTuple):
    """A tensor's view of its storage, in elements."""

    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class PickledChild(NamedTuple):
    """A value inside another one, and the path step that leads to it."""

    how: str
    what: Any
    value: Any


class PickledTensor:
    """A tensor: a view on a storage, or a composite of its parts."""

    __slots__ = ("other", "parts", "storage", "view")

    def __init__(
        self,
        view: PickledView | None,
        storage: PersistentStorage | None,
        parts: tuple[PickledChild, ...] = (),
        other: tuple[Any, ...] = (),
    ) -> None:
        self.view, self.storage, self.parts = view, storage, parts
        self.other = other  # its other properties: class, requires_grad, conjugate bit


class Reduced:
    """An object made by REDUCE with a class that the user allows: the callable, its arguments, and the state."""

    __slots__ = ("reduced", "state")

    def __init__(self, maker: Global, arguments: Any) -> None:
        self.reduced = (maker, arguments)
        self.state: Any = None


def inside(value: Any) -> Iterator[PickledChild]:
    """The children of a value, in order."""
    if isinstance(value, dict):
        yield from _pairs(value)
        yield from attributes(value.state) if isinstance(value, Dict) else ()
    elif isinstance(value, (list, tuple)):
        how = MEMBER if isinstance(value, SetItems) else ITEM
        yield from (PickledChild(how, index, each) for index, each in enumerate(value))
    elif isinstance(value, PickledTensor):
        yield from value.parts
    elif isinstance(value, Reduced):
        yield PickledChild(CALL, "__reduce__", value.reduced)
        yield from attributes(value.state)


def _pairs(value: dict[Any, Any]) -> Iterator[PickledChild]:
    for index, (key, each) in enumerate(value.items()):
        if is_plain(key):
            yield PickledChild(ITEM, key, each)
        else:
            yield PickledChild(KEY, index, key)
            yield PickledChild(KEYED, index, each)


def attributes(state: Any) -> Iterator[PickledChild]:
    """The children of a BUILD state: a dict of attributes, a pair of dicts for __slots__, or a custom state."""
    dicts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(isinstance(each, Mapping) or each is None for each in dicts):
        for each in dicts:
            yield from (PickledChild(ATTRIBUTE, str(name), value) for name, value in (each or {}).items())
    else:
        yield PickledChild(CALL, "__getstate__", state)


def is_plain(key: Any) -> bool:
    return all(map(is_plain, key)) if isinstance(key, tuple) else isinstance(key, PLAIN)


def meaning(value: Any) -> str:
    """A digest of the contents of a pickle except its storages' devices: equal for equal checkpoints."""
    digest = hashlib.sha256()
    numbers: dict[int, int] = {}  # of values that can occur again, by id; all of them stay alive here
    entered = [iter([PickledChild(ROOT, "", value)])]
    while entered:
        part = next(entered[-1], None)
        if part is None:
            entered.pop()
            digest.update(b")")
            continue
        how, what, each = part
        again = not isinstance(each, PLAIN) or _is_long(each)  # a long text can occur a million times
        known = numbers.get(id(each)) if again else None
        digest.update(repr((how, what, known or _described(each))).encode("utf-8", "surrogatepass"))
        if known is None and again:
            numbers[id(each)] = len(numbers) + 1
            entered.append(inside(each))
    return digest.hexdigest()


def _is_long(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) > LONGEST_PLACE


def _described(value: Any) -> Any:
    if isinstance(value, PickledTensor):
        stored = value.storage
        kept = stored and (stored.key, stored.dtype, stored.nbytes)
        return ("tensor", value.view, kept, value.other)
    if isinstance(value, PersistentStorage):
        return ("storage", value.key, value.dtype, value.nbytes)
    if isinstance(value, (Global, PickledDevice, *PLAIN)):
        return (type(value).__name__.replace("ShortText", "str"), value)
    return (getattr(value, "kind", type(value).__name__), len(value) if hasattr(value, "__len__") else 0)


_MOST_BYTES = 1 << 63  # torch's sizes are signed 64-bit integers
_MOST_DIMENSIONS = 64


def count(numbers: Any) -> tuple[int, ...]:
    """The numbers as sizes, strides or offsets; raises Unfit unless they are integers from 0 on."""
    if isinstance(numbers, (list, tuple)) and all(type(each) is int and 0 <= each < _MOST_BYTES for each in numbers):
        return tuple(numbers)
    raise Unfit("R066", "it has an invalid size, stride or offset")


def checked(storage: PersistentStorage | None, view: PickledView, other: tuple[Any, ...]) -> PickledTensor:
    """The tensor; raises Unfit unless it is inside its storage. Without a storage it is a meta tensor."""
    size, stride, (offset,) = count(view.size), count(view.stride), count([view.offset])
    if not isinstance(view.dtype, torch.dtype) or not (storage is None or isinstance(storage, PersistentStorage)):
        raise Unfit("R065", "its pickle makes a tensor from something that is not a storage")
    view = PickledView(view.dtype, offset, size, stride)
    elements = f"a tensor of shape {list(size)[:8]} and {view.dtype}"
    if len(size) != len(stride) or len(size) > _MOST_DIMENSIONS:
        raise Unfit("R066", f"a tensor of {len(size)} dimensions has {len(stride)} strides")
    if nbytes(view) >= _MOST_BYTES:
        raise Unfit("R066", f"{elements} is larger than any memory")
    if storage is not None and extent(view)[1] > storage.nbytes:
        raise Unfit("R066", f"{elements} exceeds its storage {storage.key!r} of {storage.nbytes} bytes")
    return PickledTensor(view, storage, (), other)


def nbytes(view: PickledView) -> int:
    return math.prod(view.size) * view.dtype.itemsize


def extent(view: PickledView) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the end of its last one."""
    if 0 in view.size:
        return 0, 0
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.size, view.stride, strict=True))
    return view.offset * view.dtype.itemsize, (last + 1) * view.dtype.itemsize


def used_bytes(views: Iterable[PickledView]) -> int:
    """How many bytes of a storage its views cover together: an upper bound, exact for most."""
    # Sorted, not in a set: a file can choose strides that all have the same hash.
    different, before = [], None
    for view in sorted(views, key=_shown):
        if before is None or _shown(view) != _shown(before):
            different.append(view)
        before = view
    return min(_covered(sorted(map(extent, different))), sum(map(_distinct, different)))


def _shown(view: PickledView) -> tuple[Any, ...]:
    return view.offset, view.size, view.stride, view.dtype.itemsize


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _distinct(view: PickledView) -> int:
    """Bytes of a view without the repetitions of expanded dimensions."""
    sizes = (1 if stride == 0 and size else size for size, stride in zip(view.size, view.stride, strict=True))
    return math.prod(sizes) * view.dtype.itemsize


def _covered(extents: Sequence[tuple[int, int]]) -> int:
    covered = reached = 0
    for first, end in extents:
        covered += max(0, end - max(first, reached))
        reached = max(reached, end)
    return covered
