"""Two names for one tensor: `on_device = x.to(device)` is x itself where there is no device, and a copy where there is.

What was sent is on the device. The name that was not gets a copy of its own, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from torchmove.rehearsing.tensors import leaves, mapped


class Name(NamedTuple):
    """A variable or an attribute."""

    text: str  # as it is written
    owner: str  # the class whose methods write it so
    value: Any
    was_sent: Callable[[], bool]
    is_made: Callable[[], bool]  # by a statement that makes it on the CPU
    bind: Callable[[Any], object] | None  # None: the step does not read it


def parted(spaces: Iterable[list[Name]], there: set[int]) -> Iterator[tuple[Name, Any]]:
    """The names that were not sent and have what was sent under another one, each with a copy.

    `spaces`: the variables of a module or a function, the attributes of an object. `there`: the tensors that were sent.
    Elsewhere than beside the other name, only what a statement has certainly made on the CPU.
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
    """Those that `to` copies: a parameter is moved with its module."""
    if type(value) in (Tensor, list, tuple, dict):
        yield from (each for each in leaves(value) if type(each) is Tensor)


def _copied(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if type(value) is Tensor else value
