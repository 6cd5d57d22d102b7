"""What the caller calls the objects it gives: paths begin with that name, so that they can be pasted."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchmove.internals.frames import frame
from torchmove.results import Result

_KINDS = (nn.Module, Optimizer)  # their names are "model" and "optimizer", where the caller has none for them
# Given by a slip: what runs through a state once, and what only names it.
_NOT_HOLDERS = (Iterator, KeysView, ValuesView, ItemsView, Result, type, str, bytes, int, float)


def given(objects: Sequence[Any]) -> dict[str, Any]:
    """The objects under the names that the caller of the public function has for them."""
    check(objects)
    return names_of(objects, frame(1).f_back)


def check(objects: Collection[Any]) -> None:
    """Are these objects, and not something that was given by a slip?"""
    if not objects:
        raise TypeError("nothing was given: name the objects, as in tm.move(model, optimizer, to=...)")
    for each in objects:
        if isinstance(each, _NOT_HOLDERS):
            raise TypeError(f"{type(each).__name__} holds no state to look at: give the module, or list(...) of it")


def names_of(
    objects: Sequence[Any], frame: FrameType | None, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A name for each object, in order; an object given twice is there once.

    The caller's variable, else the one of `parameters`, those of a function that gets the objects, else the kind.
    """
    named: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    variables = {id(each): name for name, each in (parameters or {}).items() if not isinstance(each, _KINDS)}
    if frame is not None:
        variables |= _variables(frame)
    for each in _once(objects):
        named[_unused(variables.get(id(each)) or _by_kind(each), named, counts)] = each
    return named


def _once(objects: Sequence[Any]) -> Iterable[Any]:
    return {id(each): each for each in objects}.values()


def _variables(frame: FrameType) -> dict[int, str]:
    """The caller's names for objects, by their ids; a local name goes before a global one."""
    scope = frame.f_locals
    names = {id(value): name for name, value in (*frame.f_globals.items(), *scope.items()) if not name.startswith("_")}
    # Before Python 3.13 the locals of a function are a copy that stays with its frame: it would keep alive whatever the
    # caller has in its variables now, long after they are gone.
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(scope) is dict:
        scope.clear()
    return names


def _by_kind(value: Any) -> str:
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, Optimizer):
        return "optimizer"
    return type(value).__name__.lower()


def _unused(name: str, taken: Collection[str], counts: Counter[str]) -> str:
    """The name, or the next of name_2, name_3, ..."""
    unused = name
    while unused in taken:
        counts[name] += 1
        unused = f"{name}_{counts[name] + 1}"
    return unused
