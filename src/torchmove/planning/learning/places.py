"""Where the tensors of an optimizer are made: the results of a first step, and how they apply to the real state."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.internals.stored import ATOMS, attributes

_DEEPEST = 8
_LONGEST = 4  # the largest size of a simulated parameter in each dimension
_NAMES_OF_GROUP = {"params", "param_names"}


class EntryPlace(NamedTuple):
    """A tensor's place in an optimizer: its holder, the steps from there, and the options that matter."""

    holder: str  # "state", "group" or "attribute"
    steps: tuple[Hashable, ...]
    flags: Hashable = None  # the options of its group
    kind: Hashable = None  # the dtype and shape of its parameter


class LearnedPlaces:
    """Which tensors of an optimizer are made on the CPU. The most similar place that was seen decides."""

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not  # why nothing was learned; empty otherwise
        self.seen: dict[EntryPlace, bool] = {}
        self.large_on_cpu = False  # tensors other than scalars are on the CPU
        self.varies = False  # the device of an entry depends on the parameter

    def add(self, place: EntryPlace, tensor: Tensor) -> None:
        on_cpu = tensor.device.type == "cpu"
        self.large_on_cpu |= on_cpu and tensor.numel() != 1
        for each in _nearest(place):
            before = self.seen.get(each, on_cpu)
            self.varies |= before != on_cpu
            self.seen[each] = on_cpu and before

    def on_cpu(self, place: EntryPlace) -> bool | None:
        """None: no similar place was seen."""
        return next((self.seen[each] for each in _nearest(place) if each in self.seen), None)

    def has(self, holder: str, name: Hashable) -> bool:
        return EntryPlace(holder, (name,)) in self.seen


_NOT_ENTERED = (type, types.FunctionType, types.MethodType, types.ModuleType)


def _nearest(place: EntryPlace) -> Iterator[EntryPlace]:
    holder, steps, flags, _ = place
    yield place
    yield EntryPlace(holder, steps, flags)
    yield EntryPlace(holder, steps)
    yield EntryPlace(holder, steps[:1], flags)
    yield EntryPlace(holder, steps[:1])


UNNAMED = ("...",)  # for a tensor that is itself a value of `optimizer.state`


def plain_steps(steps: Iterable[Any]) -> tuple[Hashable, ...]:
    """Steps that mean the same in every optimizer of a class, and keep no object alive."""
    return tuple([each if isinstance(each, (str, int)) else "..." for each in steps])


def tensors_in(value: Any, steps: tuple[Hashable, ...]) -> Iterator[tuple[tuple[Hashable, ...], Tensor]]:
    """Every tensor in a value of an optimizer, with the steps to it."""
    if isinstance(value, Tensor):
        yield steps, value
    elif type(value) not in ATOMS and len(steps) < _DEEPEST and not isinstance(value, _NOT_ENTERED):
        inside: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inside = value.items()
        elif isinstance(value, (list, tuple)):
            inside = enumerate(value)
        else:
            inside = attributes(value)
        for name, each in inside:
            yield from tensors_in(each, steps + plain_steps([name]))


# ---------------------------------------------------------------- options


def flags_of(group: Mapping[str, Any], names: Iterable[str]) -> Hashable:
    """The options by which an optimizer may treat a group differently; numbers only by whether they are zero."""
    return tuple((name, _flag(group[name])) for name in sorted(names) if name in group)


def options_in(group: Mapping[str, Any], named: Iterable[str]) -> set[str]:
    """The names of a group's options: the parameters of the class's constructor, and other flags and names."""
    flags = {name for name, value in group.items() if value is None or type(value) in (bool, str)}
    return (group.keys() & {*named} | flags) - _NAMES_OF_GROUP


def kind_of(parameter: Tensor) -> Hashable:
    """The dtype and shape of a parameter, by which an optimizer may treat it differently."""
    return parameter.dtype, tuple([min(size, _LONGEST) for size in parameter.shape])


def _flag(value: Any) -> Hashable:
    if value is None or isinstance(value, (bool, str, torch.dtype)):
        return value
    if isinstance(value, (int, float, complex)):
        return bool(value)
    if isinstance(value, (list, tuple)):
        return tuple([_flag(each) for each in value[:_DEEPEST]])
    return getattr(value, "__qualname__", type(value).__qualname__)
