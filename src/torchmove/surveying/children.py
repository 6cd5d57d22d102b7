"""What a reader says of a holder: its children, each one step away, and facts worth knowing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove.surveying.paths import ATTRIBUTE, ITEM, KEYED

# "host": its library computes with it on the CPU, and leaves it there. "data": a dataset, which is not entered.
Role = Literal["parameter", "buffer", "gradient", "state", "computed", "host", "data", "tensor"]


class Owner(NamedTuple):
    """Whose a tensor is: a parameter's, as state in an optimizer or as gradient, by its id; or (None) a group's; or,
    where there is no group either, the optimizer's own."""

    optimizer: Any  # None: a gradient belongs to none
    group: Mapping[str, Any] | None
    parameter: int | None


class Child(NamedTuple):
    """Something inside a holder, one step away. Role and owner go on to all below it that has none of its own."""

    how: str
    what: Any
    value: Any
    role: Role | None = None
    owner: Owner | None = None


class Children(NamedTuple):
    """Children all of one kind, as the holder keeps them: each is reached by its key. Mostly tensors.

    `at` is a step between the holder and the entries. The same could be said one by one, at a higher price.
    """

    how: str
    entries: Mapping[Any, Any]
    role: Role
    owner: Owner | None = None
    at: tuple[str, Any] | None = None


class ParameterStates(NamedTuple):
    """What an optimizer keeps for each parameter, nearly always in a dict for each: a bunch of bunches."""

    optimizer: Any
    entries: Mapping[Tensor, Any]
    group_of: Mapping[int, Mapping[str, Any]]  # by the parameter's id

    def groups(self) -> list[Mapping[str, Any]]:
        return [self.group_of.get(id(parameter), _NO_GROUP) for parameter in self.entries]

    def one_by_one(self) -> Iterator[Child | Children]:
        """The same, for a walk that has to look closer."""
        for (parameter, state), group in zip(self.entries.items(), self.groups(), strict=True):
            owner = Owner(self.optimizer, group, id(parameter))
            if isinstance(state, dict):
                yield Children(ITEM, state, "state", owner, (KEYED, parameter))
            else:
                yield Child(KEYED, parameter, state, "state", owner)


_NO_GROUP: dict[str, Any] = {}

# Like Child(...) and Bunch(...), from a tuple of all fields, and cheaper.
make_child = partial(tuple.__new__, Child)
make_children = partial(tuple.__new__, Children)


def attribute(name: str, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """For a reader: a child that is reached as `holder.name`.

    Args:
        name: of the attribute.
        value: what is there: a tensor, or another holder.
        role: what the tensors below it are: "parameter", "buffer", "gradient", "state" or "tensor".
        owner: whose they are, for an optimizer's state.

    Returns:
        The child, to be yielded.

    Examples:
        >>> import torchmove as tm
        >>> tm.attribute("frames", [1, 2]).what
        'frames'
    """
    return Child(ATTRIBUTE, name, value, role, owner)


def item(key: Any, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """For a reader: a child that is reached as `holder[key]`.

    Args:
        key: of the item.
        value: as for `tm.attribute`.
        role: as for `tm.attribute`.
        owner: as for `tm.attribute`.

    Returns:
        The child, to be yielded.

    Examples:
        >>> import torchmove as tm
        >>> tm.item("frames", [1, 2]).what
        'frames'
    """
    return Child(ITEM, key, value, role, owner)


class Inner(NamedTuple):
    """Children one step further down, for a reader that knows more of them than the container they are in."""

    children: Iterable[Child | Children | ParameterStates]
    container: Any


class Diagnostic(NamedTuple):
    """Something a reader says about its holder: R0xx stands in the way of a move, N0xx is worth knowing.

    With a device, it stands in the way only of a move that leaves that device and is to compute elsewhere.
    """

    code: str
    why: str
    remedy: str = ""
    device: torch.device | None = None


class Reader(Protocol):
    """Says what is inside one kind of holder, from stored state alone: no property and no user code runs.

    A bunch that is returned, and not yielded, is all that there is.
    """

    def __call__(self, holder: Any, /) -> Iterable[Child | Children | ParameterStates | Diagnostic] | Children: ...
