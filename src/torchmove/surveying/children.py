"""What a reader returns for a holder: its children, each one step away, and diagnostics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove.surveying.paths import ATTRIBUTE, ITEM, KEYED

# "host": the library that owns it computes with it on the CPU. "data": a dataset, which is not searched.
Role = Literal["parameter", "buffer", "gradient", "state", "computed", "host", "data", "tensor"]


class Owner(NamedTuple):
    """What a tensor belongs to in an optimizer: a parameter (by id), a group, or the optimizer itself.

    `parameter` is set for optimizer state and for gradients. It is None for a tensor of a group; `group` is None too
    for a tensor of the optimizer itself.
    """

    optimizer: Any  # None for a gradient
    group: Mapping[str, Any] | None
    parameter: int | None


class Child(NamedTuple):
    """An object in a holder, one step away. Role and owner also hold for everything in it that has none of its own."""

    how: str
    what: Any
    value: Any
    role: Role | None = None
    owner: Owner | None = None


class Children(NamedTuple):
    """Children of one kind in a mapping, each reached by its key; mostly tensors. Cheaper than one `Child` for each.

    `at` is a step between the holder and the mapping.
    """

    how: str
    entries: Mapping[Any, Any]
    role: Role
    owner: Owner | None = None
    at: tuple[str, Any] | None = None


class ParameterStates(NamedTuple):
    """What an optimizer keeps for each parameter, nearly always a dict."""

    optimizer: Any
    entries: Mapping[Tensor, Any]
    group_of: Mapping[int, Mapping[str, Any]]  # by the parameter's id

    def groups(self) -> list[Mapping[str, Any]]:
        return [self.group_of.get(id(parameter), _NO_GROUP) for parameter in self.entries]

    def one_by_one(self) -> Iterator[Child | Children]:
        """The same, as one child for each parameter, for a traversal that needs the details."""
        for (parameter, state), group in zip(self.entries.items(), self.groups(), strict=True):
            owner = Owner(self.optimizer, group, id(parameter))
            if isinstance(state, dict):
                yield Children(ITEM, state, "state", owner, (KEYED, parameter))
            else:
                yield Child(KEYED, parameter, state, "state", owner)


_NO_GROUP: dict[str, Any] = {}

# Like Child(...) and Children(...), but from a tuple of all fields, which is cheaper.
make_child = partial(tuple.__new__, Child)
make_children = partial(tuple.__new__, Children)


def attribute(name: str, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """A child that is reached as `holder.name`, for a reader to yield.

    Args:
        name: the name of the attribute.
        value: its value: a tensor, or another holder.
        role: the role of the tensors in it: "parameter", "buffer", "gradient", "state" or "tensor".
        owner: what they belong to in an optimizer, for optimizer state.

    Returns:
        The child to yield.

    Examples:
        >>> import torchmove as tm
        >>> tm.attribute("frames", [1, 2]).what
        'frames'
    """
    return Child(ATTRIBUTE, name, value, role, owner)


def item(key: Any, value: Any, role: Role | None = None, owner: Owner | None = None) -> Child:
    """A child that is reached as `holder[key]`, for a reader to yield.

    Args:
        key: the key of the item.
        value: as for `tm.attribute`.
        role: as for `tm.attribute`.
        owner: as for `tm.attribute`.

    Returns:
        The child to yield.

    Examples:
        >>> import torchmove as tm
        >>> tm.item("frames", [1, 2]).what
        'frames'
    """
    return Child(ITEM, key, value, role, owner)


class Inner(NamedTuple):
    """Children one step further down, for a reader that knows more about them than the reader of their container."""

    children: Iterable[Child | Children | ParameterStates]
    container: Any


class Diagnostic(NamedTuple):
    """Something that a reader reports about its holder: R0xx prevents a move, N0xx is a note.

    With a device, it prevents only a move that leaves that device and computes elsewhere.
    """

    code: str
    why: str
    remedy: str = ""
    device: torch.device | None = None


class Reader(Protocol):
    """Returns what is in one kind of holder, from stored state alone: no property and no user code runs.

    `Children` that are returned instead of yielded are the whole content.
    """

    def __call__(self, holder: Any, /) -> Iterable[Child | Children | ParameterStates | Diagnostic] | Children: ...
