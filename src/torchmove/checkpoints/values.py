"""What a pickle speaks of, without making any of it: stand-ins for storages, tensors and the rest.

Lists, tuples, plain dicts, numbers, texts and dtypes stand for themselves.
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

LONGEST_PLACE = 100  # of the name of a device; a longer text is none
PLAIN = (str, int, float, bool, complex, bytes, type(None), torch.dtype)


class Word(str):
    """A text that is short enough to name a device, and the step that pushed it."""

    __slots__ = ("at",)
    at: int


class Name:
    """A class, function or constant, by its full name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Device:
    """A torch.device."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"device({self.text!r})"


class Stored:
    """A storage: a record of the archive. `device` is where its tensors were; for XLA not the same as `location`."""

    __slots__ = ("device", "dtype", "key", "location", "nbytes")

    def __init__(self, key: str, dtype: torch.dtype, nbytes: int, location: str) -> None:
        self.key, self.dtype, self.nbytes, self.location, self.device = key, dtype, nbytes, location, location


class Dict(dict[Any, Any]):
    """An OrderedDict or a Counter; `state` is what is hung on it."""

    __slots__ = ("kind", "state")

    def __init__(self, kind: str, pairs: Any = ()) -> None:
        super().__init__(pairs)
        self.kind = kind
        self.state: dict[Any, Any] = {}


class Members(list[Any]):
    """A set."""


class Window(NamedTuple):
    """What a tensor shows of its storage; counted in elements."""

    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Part(NamedTuple):
    """Something inside, and the step that leads to it."""

    how: str
    what: Any
    value: Any


class Tensor:
    """A tensor: a window on a storage; or without one, made of its parts."""

    __slots__ = ("other", "parts", "storage", "window")

    def __init__(
        self, window: Window | None, storage: Stored | None, parts: tuple[Part, ...] = (), other: tuple[Any, ...] = ()
    ) -> None:
        self.window, self.storage, self.parts = window, storage, parts
        self.other = other  # whatever else makes it what it is: its class, requires_grad, conjugation


class Thing:
    """An object of a class that the user allows: its maker, what that was given, and what was set on the result."""

    __slots__ = ("reduced", "state")

    def __init__(self, maker: Name, arguments: Any) -> None:
        self.reduced = (maker, arguments)
        self.state: Any = None


def inside(value: Any) -> Iterator[Part]:
    """What a value holds, in order."""
    if isinstance(value, dict):
        yield from _pairs(value)
        yield from attributes(value.state) if isinstance(value, Dict) else ()
    elif isinstance(value, (list, tuple)):
        how = MEMBER if isinstance(value, Members) else ITEM
        yield from (Part(how, index, each) for index, each in enumerate(value))
    elif isinstance(value, Tensor):
        yield from value.parts
    elif isinstance(value, Thing):
        yield Part(CALL, "__reduce__", value.reduced)
        yield from attributes(value.state)


def _pairs(value: dict[Any, Any]) -> Iterator[Part]:
    for index, (key, each) in enumerate(value.items()):
        if is_plain(key):
            yield Part(ITEM, key, each)
        else:
            yield Part(KEY, index, key)
            yield Part(KEYED, index, each)


def attributes(state: Any) -> Iterator[Part]:
    """What BUILD hangs on an object: a dict of attributes, or a pair of dicts where there are slots, or one's own."""
    dicts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(isinstance(each, Mapping) or each is None for each in dicts):
        for each in dicts:
            yield from (Part(ATTRIBUTE, str(name), value) for name, value in (each or {}).items())
    else:
        yield Part(CALL, "__getstate__", state)


def is_plain(key: Any) -> bool:
    return all(map(is_plain, key)) if isinstance(key, tuple) else isinstance(key, PLAIN)


def meaning(value: Any) -> str:
    """A digest of all that a pickle says, save where its storages are: equal for equal checkpoints."""
    digest = hashlib.sha256()
    numbers: dict[int, int] = {}  # of values that can be met again, by id; all of them are alive meanwhile
    entered = [iter([Part(ROOT, "", value)])]
    while entered:
        part = next(entered[-1], None)
        if part is None:
            entered.pop()
            digest.update(b")")
            continue
        how, what, each = part
        again = not isinstance(each, PLAIN) or _is_long(each)  # a long text may be there a million times
        known = numbers.get(id(each)) if again else None
        digest.update(repr((how, what, known or _said(each))).encode("utf-8", "surrogatepass"))
        if known is None and again:
            numbers[id(each)] = len(numbers) + 1
            entered.append(inside(each))
    return digest.hexdigest()


def _is_long(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) > LONGEST_PLACE


def _said(value: Any) -> Any:
    if isinstance(value, Tensor):
        stored = value.storage
        kept = stored and (stored.key, stored.dtype, stored.nbytes)
        return ("tensor", value.window, kept, value.other)
    if isinstance(value, Stored):
        return ("storage", value.key, value.dtype, value.nbytes)
    if isinstance(value, (Name, Device, *PLAIN)):
        return (type(value).__name__.replace("Word", "str"), value)
    return (getattr(value, "kind", type(value).__name__), len(value) if hasattr(value, "__len__") else 0)


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
