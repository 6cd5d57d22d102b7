"""What the caller calls the objects it gives: paths begin with that name, so that they can be pasted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer


def names_of(objects: Sequence[Any], frame: FrameType | None) -> dict[str, Any]:
    """A name for each object, in order; an object given twice is there once."""
    named: dict[str, Any] = {}
    for each in _once(objects):
        name = _variable(each, frame) or _by_kind(each)
        named[_unused(name, named)] = each
    return named


def _once(objects: Sequence[Any]) -> Iterable[Any]:
    return {id(each): each for each in objects}.values()


def _variable(value: Any, frame: FrameType | None) -> str | None:
    """The variable of the caller that holds the object."""
    if frame is None:
        return None
    for scope in (frame.f_locals, frame.f_globals):
        for name, held in scope.items():
            if held is value and not name.startswith("_"):
                return name
    return None


def _by_kind(value: Any) -> str:
    if isinstance(value, nn.Module):
        return "model"
    if isinstance(value, Optimizer):
        return "optimizer"
    return type(value).__name__.lower()


def _unused(name: str, taken: dict[str, Any]) -> str:
    count = 2
    unused = name
    while unused in taken:
        unused = f"{name}_{count}"
        count += 1
    return unused
