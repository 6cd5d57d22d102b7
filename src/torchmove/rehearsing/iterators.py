"""Iterators that a step can advance. The step gets copies where Python can copy them; other advances are reported."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from torch import nn

from torchmove.internals.simulation import LoaderIterator, batches_yielded
from torchmove.internals.stored import stored_dict
from torchmove.rehearsing.captured import Captured
from torchmove.surveying.inventory import Inventory

Put = Callable[[Any], object]

_EMPTY: tuple[Any, ...] = ([], (), range(0), range(1 << 70), "", "\u00e4", b"", bytearray(), {}, set())
_PLAIN: tuple[Any, ...] = (
    *(type(iter(empty)) for empty in _EMPTY),
    *(type(reversed([])), type(reversed(range(0))), type(iter({}.values())), type(iter({}.items()))),
    *(itertools.count, itertools.repeat),
)
_COMPOSED = (zip, map, filter, enumerate, itertools.cycle)  # wrap other iterators, which are copied too
_OF_PYTHON = ("builtins", "itertools", "_csv")  # modules of iterator classes without inspectable state


class Reached(NamedTuple):
    """An iterator that exists before the step: its name, and the functions that replace it where it is stored."""

    name: str
    iterator: Any
    puts: list[Put]


class Iterators:
    """The iterators that a step can reach. Call `spare` before the step and `advanced` after it."""

    def __init__(self, around: Captured, named: Mapping[str, Any], inventory: Inventory) -> None:
        self.reached: dict[int, Reached] = {}
        for name, value, put in [*_variables(around), *_members(named, inventory)]:
            if is_iterator(value):
                found = self.reached.setdefault(id(value), Reached(name, value, []))
                found.puts.extend(filter(None, [put]))
        self.before = {key: _standing(each.iterator) for key, each in self.reached.items()}

    def spare(self, arguments: Iterable[Any]) -> tuple[Any, ...]:
        """Replace the iterators that can be copied, and return the step's arguments with the copies.

        The undo list of the captured variables and holders restores the originals.
        """
        copies: dict[int, Any] = {}
        for key, (_, iterator, puts) in self.reached.items():
            copied = _copied(iterator)
            if copied is not None:
                copies[key] = copied
                for put in puts:
                    put(copied)
        return tuple(copies.get(id(each), each) for each in arguments)

    def advanced(self) -> list[str]:
        """Messages about the iterators whose position changed."""
        said = "was advanced by the step and cannot be reset: create it again"
        return [
            f"{name} ({_kind(iterator)}) {said}"
            for key, (name, iterator, _) in self.reached.items()
            if not _is_same(_standing(iterator), self.before[key])
        ]


def _kind(iterator: Any) -> str:
    if isinstance(iterator, LoaderIterator):
        return "the iterator of a DataLoader"
    return "a generator" if isinstance(iterator, types.GeneratorType) else type(iterator).__name__


def is_iterator(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (types.GeneratorType, LoaderIterator)):
        return True
    return kind.__module__ in _OF_PYTHON and hasattr(kind, "__next__")


def _variables(around: Captured) -> Iterator[tuple[str, Any, Put | None]]:
    """The module variables and closure variables that the step's functions use."""
    for (_, name), space in around.names.items():
        if name in space:
            yield from _with_inner(name, space[name], functools.partial(space.__setitem__, name))
    for function in around.functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                yield from _with_inner(name, cell.cell_contents, functools.partial(setattr, cell, "cell_contents"))


def _members(named: Mapping[str, Any], inventory: Inventory) -> Iterator[tuple[str, Any, Put | None]]:
    """The given objects, and the attributes and elements of what they hold."""
    for name, value in named.items():
        yield from _with_inner(name, value, None)
    for holder, path in inventory.holders.values():
        if isinstance(holder, (type, types.ModuleType, types.FunctionType, LoaderIterator)):
            continue
        stored = stored_dict(holder) or {}
        for name, value in list(stored.items()):
            yield from _with_inner(f"{path}.{name}", value, functools.partial(stored.__setitem__, name))
        for key, value in _items(holder):
            kind: Any = dict if isinstance(holder, dict) else list
            put = None if isinstance(holder, tuple) else functools.partial(kind.__setitem__, holder, key)
            yield from _with_inner(f"{path}[{key!r}]", value, put)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, nn.Module):
        return []
    if isinstance(holder, dict):
        return list(dict.items(holder))
    return list(enumerate(holder)) if type(holder) in (list, tuple) else []


def _with_inner(name: str, value: Any, put: Put | None) -> Iterator[tuple[str, Any, Put | None]]:
    """The value, and what it is bound to if it is a method such as `it.__next__` or a partial."""
    yield name, value, put
    if isinstance(value, (types.MethodWrapperType, types.BuiltinMethodType)):
        yield name, value.__self__, None
    elif isinstance(value, functools.partial):
        yield from ((name, each, None) for each in (*value.args, *value.keywords.values()))


# ---------------------------------------------------------------- positions


def _standing(iterator: Any) -> list[Any]:
    """Values that change when an iterator, or one that it reads from, is advanced."""
    found: list[Any] = []
    todo, seen = [iterator], {}
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        found += _position(each)
        if not isinstance(each, LoaderIterator):
            inside = _referents(each)
            found += inside if isinstance(each, types.GeneratorType) else []
            members = chain.from_iterable(one for one in inside if type(one) is tuple)  # of a zip
            todo += filter(is_iterator, (*inside, *members))
    return found


def _referents(each: Any) -> list[Any]:
    """What an iterator refers to. Before Python 3.11, a generator's variables are in its frame."""
    frame = each.gi_frame if isinstance(each, types.GeneratorType) else None
    found = gc.get_referents(each) if frame is None else gc.get_referents(each, frame)
    return [one for one in found if not isinstance(one, types.FrameType)]


def _position(each: Any) -> list[Any]:
    if isinstance(each, types.GeneratorType):
        return [None if each.gi_frame is None else each.gi_frame.f_lasti]
    if isinstance(each, LoaderIterator):
        return [batches_yielded(each)]
    if isinstance(each, (itertools.count, itertools.repeat)):
        return [repr(each)] if isinstance(each, itertools.count) else []
    if hasattr(each, "__length_hint__"):
        return [each.__length_hint__()]
    return [getattr(each, "line_num", None)]  # a csv reader


def _is_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(
        one is other or (type(one) is type(other) and isinstance(one, (int, str)) and one == other)
        for one, other in zip(now, before, strict=True)
    )


def _apart(state: Any) -> Any:
    return tuple([*one] if isinstance(one, list) else one for one in state) if isinstance(state, tuple) else state


def _copied(iterator: Any) -> Any:
    """A copy at the same position; None if Python cannot copy the iterator without advancing it."""
    kind = type(iterator)
    with suppress(TypeError, ValueError, AttributeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in _PLAIN:
            return copy.copy(iterator)
        if kind in _COMPOSED:
            make, arguments, *state = iterator.__reduce__()
            inner = [_copied(each) if hasattr(type(each), "__next__") else each for each in arguments]
            if any(one is None and each is not None for one, each in zip(inner, arguments, strict=True)):
                return None
            made = make(*inner)
            for each in state:  # the state of a cycle: the elements so far, and whether it has started over
                made.__setstate__(_apart(each))
            return made
    return None
