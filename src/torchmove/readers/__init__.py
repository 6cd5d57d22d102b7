"""The table: which reader says what is inside which type. A type not listed is read as its nearest listed base is.

A new kind of holder is one function in a file here and one row in the table; users add rows with `register_reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torchmove._records import Reader
from torchmove.readers import containers, functions, modules, objects, optimizers, outside, wrappers

__all__ = ["reader_for", "register_reader"]

_TABLE: dict[type | str, Reader] = {
    **containers.TABLE,
    **functions.TABLE,
    **modules.TABLE,
    **optimizers.TABLE,
    **wrappers.TABLE,
    **outside.TABLE,
    object: objects.read,
}

R = TypeVar("R", bound=Reader)


def reader_for(kind: type) -> Reader:
    """The reader of a type: the row of the first class in its order of bases that has one.

    A row may name a class as "module:name", so that a class that nobody imported costs no import.
    """
    for base in kind.__mro__:
        reader = _TABLE.get(base) or _TABLE.get(f"{base.__module__}:{base.__qualname__}")
        if reader is not None:
            return reader
    raise AssertionError("every type has the base object, and object has a reader")


def register_reader(*kinds: type) -> Callable[[R], R]:
    """Teach torchmove what is inside a kind of holder.

    >>> import torch, torchmove as tm
    >>> class Ring:
    ...     __slots__ = ("_handle",)
    >>> frames = {}                                   # held elsewhere: not reachable from a Ring by itself
    >>> @tm.register_reader(Ring)
    ... def read_ring(ring):
    ...     yield tm.item("frame", frames[id(ring)])  # the path prints as ring["frame"]
    >>> ring = Ring()
    >>> frames[id(ring)] = torch.zeros(3)
    >>> print(tm.survey(ring).slots[0].path)
    ring['frame']
    """
    if not kinds or not all(isinstance(kind, type) for kind in kinds):
        raise TypeError("register_reader takes the types that the reader reads: @register_reader(Ring)")

    def register(reader: R) -> R:
        for kind in kinds:
            _TABLE[kind] = reader
        return reader

    return register
