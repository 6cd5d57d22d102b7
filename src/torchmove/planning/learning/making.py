"""An optimizer of the same class and options over parameters of the simulated device. The real one is only read."""

from __future__ import annotations

import enum
import inspect
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.internals.stored import ATOMS, stored_dict
from torchmove.planning.learning.births import flags_of, kind_of, options_in
from torchmove.planning.learning.device import CPU, FirstStepMode

_MOST = 16  # groups, and parameters of each
_HYPERPARAMETERS_MOVE = ("capturable", "fused")


class Unmakable(Exception):
    """There is no way to make another one; says why."""


class Maker:
    """Makes optimizers like a real one, over small parameters of the same kinds."""

    def __init__(self, optimizer: Optimizer, simulation: FirstStepMode) -> None:
        self.optimizer, self.simulation = optimizer, simulation
        self.parameters: dict[int, nn.Parameter] = {}  # by the id of the real one whose kind they are of
        self.given: dict[int, Tensor] = {}  # the tensors that are made for it, and not by it
        self.inner: dict[int, Optimizer] = {}
        self.named = named_options(type(optimizer))
        self.groups = list(distinct(optimizer.param_groups, self.named))
        for group in self.groups:
            for parameter in group["params"]:
                self.parameters[id(parameter)] = self.like(parameter)
        home = next((each.device for group in self.groups for each in group["params"]), CPU)
        self.home = home

    def like(self, parameter: Tensor) -> nn.Parameter:
        shape = [*kind_of(parameter)[1]]  # type: ignore[index]
        made = nn.Parameter(self.simulation.put(values(shape, parameter.dtype)), parameter.requires_grad)
        made.__dict__.update({name: each for name, each in vars(parameter).items() if type(each) in ATOMS})
        return made

    # ------------------------------------------------------------ by its constructor

    def constructed(self, *, with_flags: bool) -> Optimizer:
        kind, stored = type(self.optimizer), stored_dict(self.optimizer) or {}
        first, *_ = self.named or [""]
        options: dict[str, Any] = {}
        for name in self.named:
            value = self.optimizer.defaults.get(name, stored.get(name, _MISSING))
            if value is not _MISSING:
                with self.unless_default(name):
                    options[name] = self.copied(value)
        groups: Any = [self.group(group, with_flags) for group in self.groups]
        if not isinstance(options.get(first), Optimizer):
            options.pop(first, None)
            return kind(groups, **options)
        return kind(**options)

    def group(self, group: Mapping[str, Any], with_flags: bool) -> dict[str, Any]:
        names = options_in(group, self.named) if with_flags else group.keys() & {*self.named}
        options: dict[str, Any] = {"params": [self.parameters[id(each)] for each in group["params"]]}
        for name in sorted(names - options.keys()):
            with self.unless_default(name):
                options[name] = self.copied(group[name], group)
        return options

    def unless_default(self, name: str) -> AbstractContextManager[None]:
        """What cannot be copied may be left to the constructor, if that has one of its own."""
        return nullcontext() if self.named.get(name, True) else suppress(Unmakable)

    # ------------------------------------------------------------ by a copy of what it has stored

    def copy(self) -> Optimizer:
        return self.copy_of(self.optimizer)

    def copy_of(self, optimizer: Optimizer) -> Optimizer:
        """The same, without its state and the hooks on it."""
        if id(optimizer) in self.inner:
            return self.inner[id(optimizer)]
        kind = type(optimizer)
        made: Optimizer = object.__new__(kind)
        self.inner[id(optimizer)] = made
        for name, value in (stored_dict(optimizer) or {}).items():
            if name == "state":
                made.__dict__[name] = defaultdict(dict)
            elif name == "param_groups":
                groups = distinct(value, self.named)
                made.__dict__[name] = [self.whole_group(group) for group in groups]
            elif name.endswith("_hooks"):
                made.__dict__[name] = type(value)()
            elif not hasattr(kind, name) or type(value) in ATOMS:  # what hides a method is bound to the real one
                made.__dict__[name] = self.copied(value)
        return made

    def whole_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        missing = [each for each in group["params"] if id(each) not in self.parameters]
        self.parameters.update({id(each): self.like(each) for each in missing})
        options = {name: self.copied(value, group) for name, value in group.items() if name != "params"}
        return options | {"params": [self.parameters[id(each)] for each in group["params"]]}

    # ------------------------------------------------------------ values

    def copied(self, value: Any, group: Mapping[str, Any] | None = None) -> Any:
        kind = type(value)
        if kind in ATOMS or isinstance(value, (type, enum.Enum, types.BuiltinFunctionType)):
            return value
        if isinstance(value, Tensor):
            return self.tensor(value, group or self.optimizer.defaults)
        if isinstance(value, torch.device):
            return self.simulation.device if value == self.home else value
        if kind in (list, tuple, set, frozenset):
            return kind([self.copied(each, group) for each in value])
        if kind in (dict, defaultdict) and not callable(getattr(value, "default_factory", None)):
            return {key: self.copied(each, group) for key, each in value.items()}
        if isinstance(value, Optimizer):
            return self.copy_of(value)
        if isinstance(value, types.FunctionType) and not value.__closure__:
            return value
        if isinstance(value, torch.Generator) and value.device == CPU:
            return value.clone_state()
        raise Unmakable(f"it holds a {kind.__name__}")

    def tensor(self, value: Tensor, group: Mapping[str, Any]) -> Tensor:
        """A hyperparameter that is a tensor is where the user has put it; a move puts it where the step needs it."""
        if id(value) in self.parameters:
            return self.parameters[id(value)]
        if value.numel() > 1 or value.layout is not torch.strided:
            raise Unmakable("it holds a tensor that it did not make in a step")
        made = value.detach().to(CPU, copy=True)
        if any(group.get(flag) for flag in _HYPERPARAMETERS_MOVE):
            made = self.simulation.put(made)
        self.given[id(made)] = made
        return made


def named_options(kind: type) -> dict[str, bool]:
    """The names that a class, or what it hands its keywords on to, is made with, and whether it has to be; the first
    takes the parameters."""
    names: dict[str, bool] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        given = [*inspect.signature(vars(base)["__init__"]).parameters.values()][1:]
        own = {each.name: each.default is each.empty for each in given if each.kind not in _VARIADIC}
        names |= {name: is_needed for name, is_needed in own.items() if name not in names and name != "defaults"}
        if base is Optimizer or not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in given):
            break
    return names


_MISSING = object()
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def distinct(groups: Sequence[Mapping[str, Any]], named: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One group of those that differ in no flag, with one parameter of each kind."""
    by_flags: dict[Any, dict[str, Any]] = {}
    kinds: defaultdict[Any, dict[Any, Tensor]] = defaultdict(dict)
    for group in groups:
        flags = flags_of(group, options_in(group, named))
        by_flags.setdefault(flags, dict(group))
        for kind, parameter in zip(map(kind_of, group["params"]), group["params"], strict=True):
            kinds[flags].setdefault(kind, parameter)
    for flags, group in [*by_flags.items()][:_MOST]:
        yield group | {"params": [*kinds[flags].values()][:_MOST]}


def values(shape: Sequence[int], dtype: torch.dtype, start: float = 0.0) -> Tensor:
    """Different numbers, none of them zero, so that norms and decompositions of them exist."""
    size = torch.Size(shape).numel()
    numbers = (torch.arange(size, device=CPU, dtype=torch.float64) * 12.9898 + start + 0.5).sin()
    numbers = torch.complex(numbers, numbers.cos()) if dtype.is_complex else numbers
    return numbers.reshape(torch.Size(shape)).to(dtype)


def set_gradients(made: Maker, number: int, *, sparse: bool) -> None:
    for parameter in made.parameters.values():
        if parameter.is_floating_point() or parameter.is_complex():
            real = values(parameter.shape, parameter.dtype, float(number))
            parameter.grad = made.simulation.put(real.to_sparse() if sparse else real)
