"""What a reader says of a holder: its children, each one step away, and facts worth knowing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from torchmove._paths import ATTRIBUTE, ITEM

Role = Literal["parameter", "buffer", "gradient", "state", "computed", "tensor"]


class Owner(NamedTuple):
    """The place of a tensor in an optimizer: which entry, of which parameter (None: of the group), in which group."""

    optimizer: type
    key: str
    group: Mapping[str, Any]
    parameter: Tensor | None


class Child(NamedTuple):
    """Something inside a holder, one step away. Role and owner go on to all below it that has none of its own."""

    how: str
    what: Any
    value: Any
    role: Role | None = None
    owner: Owner | None = None


# Like Owner(...) and Child(...), from a tuple, at half the price: every tensor of an optimizer gets both.
make_owner = partial(tuple.__new__, Owner)
make_child = partial(tuple.__new__, Child)


def attribute(name: str, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """A child that is reached as `holder.name`."""
    return Child(ATTRIBUTE, name, value, role, owner)


def item(key: Any, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """A child that is reached as `holder[key]`."""
    return Child(ITEM, key, value, role, owner)


class Level(NamedTuple):
    """Children one step further down, for a reader that knows more of them than the container they are in."""

    children: Iterable[Child]


class Fact(NamedTuple):
    """Something a reader says about its holder: R0xx stands in the way of a move, N0xx is worth knowing."""

    code: str
    why: str
    remedy: str = ""


class Reader(Protocol):
    """Says what is inside one kind of holder, from stored state alone: no property and no user code runs."""

    def __call__(self, holder: Any, /) -> Iterable[Child | Fact]: ...
