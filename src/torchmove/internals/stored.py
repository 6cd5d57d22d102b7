"""What an object has stored, read without running any code of its class: no property, no `__getattr__`."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import fractions
import functools
import pathlib
import re
import threading
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any, cast

import torch

LruCache = functools._lru_cache_wrapper

# Values that hold nothing. Told by their exact type, so that a subclass with attributes is still looked into.
ATOMS: frozenset[type] = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice),
        *(type(Ellipsis), type(NotImplemented), object),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
        *(threading.Condition, threading.Event, threading.Semaphore, threading.BoundedSemaphore, threading.Barrier),
        *(torch.dtype, torch.layout, torch.memory_format, torch.Size, torch.qscheme, torch.finfo, torch.iinfo),
    }
)


def attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """The names and values in an object's `__dict__` and slots."""
    stored = stored_dict(holder)
    if stored is not None:
        yield from dict.items(stored)
    yield from slots(holder)


def stored_dict(holder: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, the one that Python keeps; None: it has none."""
    kind = type(holder)
    for base in kind.__mro__:
        # Only the descriptors that Python itself makes: a class may define a property of that name.
        found = base.__dict__.get("__dict__")
        if found is not None and type(found) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            return cast("dict[str, Any]", found.__get__(holder))
    # A property of that name in the class that would have had the descriptor leaves only the C API.
    return cast("dict[str, Any]", _generic_dict(holder, None)) if kind.__dictoffset__ else None


_generic_dict = ctypes.pythonapi.PyObject_GenericGetDict
_generic_dict.argtypes, _generic_dict.restype = (ctypes.py_object, ctypes.c_void_p), ctypes.py_object


def is_frozen(kind: type) -> bool:
    """Is it a dataclass whose objects refuse to be changed?"""
    return bool(getattr(kind.__dict__.get("__dataclass_params__"), "frozen", False))


def has_slots(kind: type) -> bool:
    """Can objects of this class store something in `__slots__`?"""
    return any(base.__dict__.get("__slots__") for base in kind.__mro__)


def slots(holder: Any) -> Iterator[tuple[str, Any]]:
    """The names and values in an object's slots, those of its bases included."""
    for base in type(holder).__mro__:
        if "__slots__" not in base.__dict__:
            continue
        for name, descriptor in base.__dict__.items():
            if type(descriptor) is types.MemberDescriptorType:
                try:
                    yield name, descriptor.__get__(holder)
                except AttributeError:  # never set
                    continue


# ---------------------------------------------------------------- containers, past what their classes make of it

CONTAINERS = (OrderedDict, dict, list, set, deque)


def contents(container: Any) -> list[Any]:
    """The members of a container; of a dict, its keys and values."""
    kind: Any = _kind_of(container)
    return list(kind.items(container) if issubclass(kind, dict) else kind.__iter__(container))


def refill(container: Any, members: Sequence[Any]) -> None:
    """Give a container the contents that it had, in place and in order. Can be broken off and called again."""
    kind: Any = _kind_of(container)
    now = contents(container)
    if len(now) == len(members):
        flat = chain.from_iterable if issubclass(kind, dict) else iter
        if all(map(is_, flat(now), flat(members))):
            return
    kind.clear(container)
    if issubclass(kind, dict):
        for key, value in members:
            kind.__setitem__(container, key, value)  # OrderedDict's own: it keeps its order beside the dict
    elif kind is set:
        kind.update(container, members)
    else:
        kind.extend(container, members)


def _kind_of(container: Any) -> type:
    return next(kind for kind in CONTAINERS if isinstance(container, kind))
