"""What a pickle speaks of, without making any of it: stand-ins for storages, tensors and the rest.

Lists, tuples, plain dicts, numbers, texts and dtypes stand for themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

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
