"""The names that the caller has for the given objects: paths start with them, so that they can be pasted."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchmove.internals.frames import frame
from torchmove.results import Result

_KINDS = (nn.Module, Optimizer)  # named "model" and "optimizer" where the caller has no name for them
# Given by mistake: one-shot iterators, views, classes, numbers and names.
_NOT_HOLDERS = (Iterator, KeysView, ValuesView, ItemsView, Result, type, str, bytes, int, float)


def given(objects: Sequence[Any]) -> dict[str, Any]:
    """The objects, by the names that the caller of the public function has for them."""
    check(objects)
    return names_of(objects, frame(1).f_back)


def check(objects: Collection[Any]) -> None:
    """Raise a TypeError for an object that cannot be searched for tensors, such as a str or a generator."""
    if not objects:
        raise TypeError("no objects were given. Fix: pass them, as in tm.move(model, optimizer, to=...)")
    for each in objects:
        if isinstance(each, str):
            raise TypeError(f"a str holds no tensors. {_meant(each)}")
        if isinstance(each, _NOT_HOLDERS):
            raise TypeError(
                f"cannot search {type(each).__name__} for tensors. Fix: pass the module, or list(...) of the iterator"
            )


def _meant(text: str) -> str:
    try:
        torch.device(text)
    except RuntimeError:
        return "Fix: pass the object itself"
    return f"Did you mean to={text!r}?"


def names_of(
    objects: Sequence[Any], frame: FrameType | None, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A name for each object, in order; an object that is given twice appears once.

    The caller's variable, else the name in `parameters` (of a function that receives the objects), else one for its
    kind.
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
    """The caller's names for objects, by their ids; local names take precedence over global ones."""
    scope = frame.f_locals
    names = {id(value): name for name, value in (*frame.f_globals.items(), *scope.items()) if not name.startswith("_")}
    # Before Python 3.13, the locals of a function are a copy that stays with its frame, and would keep the values of
    # all its variables alive.
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
