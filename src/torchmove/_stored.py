"""What an object has stored, read without running any code of its class: no property, no `__getattr__`."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import threading
import types
import uuid
from collections.abc import Iterator
from typing import Any

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
    for base in type(holder).__mro__:
        stored = base.__dict__.get("__dict__")
        # Only the descriptors that Python itself makes: a class may define a property of that name.
        if stored is not None and type(stored) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            yield from dict.items(stored.__get__(holder))
            break
    for base in type(holder).__mro__:
        if "__slots__" in base.__dict__:
            yield from _slots(holder, base)


def _slots(holder: Any, base: type) -> Iterator[tuple[str, Any]]:
    for name, descriptor in base.__dict__.items():
        if type(descriptor) is types.MemberDescriptorType:
            try:
                yield name, descriptor.__get__(holder)
            except AttributeError:  # never set
                continue
