"""Separates names of one tensor that `to` would split: `on_device = x.to(device)` is x itself without the device.

With the device it is a copy. So the moved name keeps the tensor, and the other name gets a copy on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from torchmove.rehearsing.tensors import leaves, mapped


class Name(NamedTuple):
    """A variable or an attribute."""

    text: str  # as written in the source
    owner: str  # the class whose methods use this text
    value: Any
    was_sent: Callable[[], bool]
    is_made: Callable[[], bool]  # whether a statement creates it on the CPU
    bind: Callable[[Any], object] | None  # None if the step does not read it


def parted(spaces: Iterable[list[Name]], there: set[int]) -> Iterator[tuple[Name, Any]]:
    """Yield the names that were not moved but share a tensor with a moved name, each with a copy of its value.

    `spaces`: the names of each module, function or object. `there`: the ids of the tensors on the device. If the moved
    name is in another space, only values that a statement created on the CPU are yielded.
    """
    sent: set[int] = set()
    unsent: list[tuple[Name, set[int], set[int]]] = []
    for names in spaces:
        shared = [(each, its) for each in names if (its := {*map(id, _plain_tensors(each.value))} & there)]
        was_sent = [each.was_sent() for each, _ in shared]
        beside = {one for (_, its), yes in zip(shared, was_sent, strict=True) if yes for one in its}
        sent |= beside
        unsent += [(each, its, beside) for (each, its), yes in zip(shared, was_sent, strict=True) if not yes]
    for name, its, beside in unsent:
        if name.bind is not None and (its & beside or (its & sent and name.is_made())):
            yield name, mapped(_copied, name.value)


def _plain_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that `to` copies; parameters are excluded, as they move with their module."""
    if type(value) in (Tensor, list, tuple, dict):
        yield from (each for each in leaves(value) if type(each) is Tensor)


def _copied(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if type(value) is Tensor else value
