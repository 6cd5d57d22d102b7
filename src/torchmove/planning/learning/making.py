"""Make an optimizer of the same class and options over simulated parameters. The real optimizer is only read."""

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
from torchmove.planning.learning.device import CPU, FirstStepMode
from torchmove.planning.learning.places import flags_of, kind_of, options_in

_MOST = 16  # the most groups, and the most parameters of each
_HYPERPARAMETERS_MOVE = ("capturable", "fused")


class Unmakable(Exception):
    """No similar optimizer can be made; the message says why."""


class Maker:
    """Makes optimizers like a real one, over small parameters of the same dtypes and dimensions."""

    def __init__(self, optimizer: Optimizer, simulation: FirstStepMode) -> None:
        self.optimizer, self.simulation = optimizer, simulation
        self.parameters: dict[int, nn.Parameter] = {}  # the simulated parameters, by the ids of the real ones
        self.given: dict[int, Tensor] = {}  # the tensors that were passed to it, not made by it
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

    # ------------------------------------------------------------ by calling its constructor

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
        """Leave an option that cannot be copied to the constructor, if that has a default for it."""
        return nullcontext() if self.named.get(name, True) else suppress(Unmakable)

    # ------------------------------------------------------------ by copying its attributes

    def copy(self) -> Optimizer:
        return self.copy_of(self.optimizer)

    def copy_of(self, optimizer: Optimizer) -> Optimizer:
        """A copy without state and hooks."""
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
            elif not hasattr(kind, name) or type(value) in ATOMS:  # a method that was replaced is bound to the real one
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
        raise Unmakable(f"it holds a {kind.__name__}, which cannot be copied")

    def tensor(self, value: Tensor, group: Mapping[str, Any]) -> Tensor:
        """A hyperparameter tensor, on the device that a step needs it on, where a move puts it too."""
        if id(value) in self.parameters:
            return self.parameters[id(value)]
        if value.numel() > 1 or value.layout is not torch.strided:
            raise Unmakable("it holds a tensor that its step did not make")
        made = value.detach().to(CPU, copy=True)
        if any(group.get(flag) for flag in _HYPERPARAMETERS_MOVE):
            made = self.simulation.put(made)
        self.given[id(made)] = made
        return made


def named_options(kind: type) -> dict[str, bool]:
    """The parameters of an optimizer class's constructor, and whether each is required; the first takes the tensors.

    Where a constructor passes `**kwargs` on, those of the base class are included.
    """
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
    """One group for each set of options, with one parameter of each dtype and shape."""
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
