"""What an object has stored, read without running any code of its class: no property, no `__getattr__`."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import fractions
import pathlib
import re
import threading
import types
import uuid
from collections.abc import Iterator
from typing import Any, cast

import torch

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
