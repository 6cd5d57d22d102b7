"""The table of readers: which function returns the children of which type. A type without a row uses its nearest base.

To support a new kind of holder, add a function to a file here and a row to its table; users call `register_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from torch import nn

from torchmove.internals.stored import ATOMS, has_slots
from torchmove.surveying.paths import Child, Children, Reader
from torchmove.surveying.readers import (
    containers,
    functions,
    libraries,
    modules,
    optimizers,
    outside,
    scripted,
    wrappers,
)

__all__ = ["reader_by_rules", "reader_for", "register_reader"]

_TABLE: dict[type | str, Reader] = {
    **containers.TABLE,
    **functions.TABLE,
    **modules.TABLE,
    **optimizers.TABLE,
    **scripted.TABLE,
    **wrappers.TABLE,
    **libraries.TABLE,
    **outside.TABLE,
    object: containers.read_object,
}

R = TypeVar("R", bound=Reader)


def reader_for(kind: type) -> Reader:
    """The reader of a type: that of the first class in its method resolution order that has a row.

    A row may name a class as "module:name", so that a class that is not imported costs no import.
    """
    named = [(base, f"{base.__module__}:{base.__qualname__}") for base in kind.__mro__]
    # Every type inherits from object, which has a reader.
    reader = next(found for base, name in named if (found := _TABLE.get(base) or _TABLE.get(name)))
    more = [libraries.BESIDES[name] for _, name in named if name in libraries.BESIDES]
    if issubclass(kind, nn.Module) and has_slots(kind):
        more.append(modules.read_slots)
    return _one_after_the_other(reader, *more) if more else reader


def _one_after_the_other(*readers: Reader) -> Reader:
    def read(holder: Any) -> Iterator[Any]:
        for reader in readers:
            inside = reader(holder)
            yield from [inside] if type(inside) is Children else inside

    return read


def reader_by_rules(kind: type) -> Reader:
    """The reader of a class, with the roles that its rules give to its attributes."""
    reader, places = reader_for(kind), _places_of(kind)
    if not places:
        return reader

    def read(holder: Any) -> Iterator[Any]:
        found = reader(holder)
        children: Iterable[Any] = [found] if type(found) is Children else found
        for child in children:
            place = places.get(child.what, places.get("*")) if type(child) is Child else None
            place = place(holder) if callable(place) else place
            if place == "data" and _can_be_data(child.value):
                yield child._replace(role="data")
            else:
                yield child._replace(role="host") if place == "cpu" else child

    return read


def _can_be_data(value: Any) -> bool:
    """Whether a rule may make this data: not a module, nor a class that always is data."""
    kind = type(value)
    return kind not in ATOMS and not issubclass(kind, nn.Module) and reader_for(kind) is not outside.read_data


def _places_of(kind: type) -> Mapping[str, libraries.Place | libraries.HelperRule]:
    """The rules for the attributes of a class, including those for its base classes."""
    found: dict[str, libraries.Place | libraries.HelperRule] = {}
    for base in reversed(kind.__mro__):
        found |= libraries.HELPERS.get(f"{base.__module__}:{base.__qualname__}", {})
        found |= libraries.HELPERS.get(base, {})
    return found


def register_reader(*kinds: type) -> Callable[[R], R]:
    """Register a function that returns what is in objects of some types.

    Args:
        *kinds: the types that the reader reads; it also reads their subclasses that have no reader of their own.

    Returns:
        A decorator. The function takes a holder and yields `tm.attribute(...)` and `tm.item(...)` for what the holder
        stores; it must not run user code.

    Raises:
        TypeError: no types were passed.

    Examples:
        >>> import torch, torchmove as tm
        >>> class Ring:
        ...     __slots__ = ("_handle",)
        >>> frames = {}                                   # stored elsewhere: not reachable from a Ring
        >>> @tm.register_reader(Ring)
        ... def read_ring(ring):
        ...     yield tm.item("frame", frames[id(ring)])  # the path prints as ring["frame"]
        >>> ring = Ring()
        >>> frames[id(ring)] = torch.zeros(3)
        >>> print(tm.survey(ring).tensors[0].path)
        ring['frame']
    """
    if not kinds or not all(isinstance(kind, type) for kind in kinds):
        raise TypeError("register_reader needs the types to read. Fix: @tm.register_reader(Ring)")

    def register(reader: R) -> R:
        for kind in kinds:
            _TABLE[kind] = reader
        return reader

    return register
