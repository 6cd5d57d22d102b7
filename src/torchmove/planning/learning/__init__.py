"""Learn where an optimizer class without rules keeps its tensors, from a first step on a simulated device.

The step runs once for each class and its options, with an optimizer made for it over a few small parameters; the real
optimizer is only read. It shows the device of each tensor in the state, in the groups and in the attributes.
"""

from __future__ import annotations

import enum
import inspect
import threading
import time
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.internals.stored import ATOMS, attributes, stored_dict
from torchmove.planning.learning.device import CPU, FirstStepMode, GivenUp, contained

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


_MOST_RESULTS = 32  # results kept for each class
_MOST_SECONDS = 0.5
_KNOWN: weakref.WeakKeyDictionary[type, OrderedDict[Hashable, LearnedPlaces]] = weakref.WeakKeyDictionary()
_one_at_a_time = threading.RLock()


def learned_places_of(optimizer: Optimizer, target: torch.device) -> LearnedPlaces:
    """Where the optimizer would have made its tensors on the target."""
    try:
        likeness = _likeness(optimizer, target)
    except Exception as error:
        return LearnedPlaces(_text_of(error))
    with _one_at_a_time:
        known = _KNOWN.setdefault(type(optimizer), OrderedDict())
        learned = known.get(likeness)
        if learned is None:
            learned = known[likeness] = _learned(optimizer, target)
            if len(known) > _MOST_RESULTS:
                known.popitem(last=False)
    return learned


def options_of(optimizer: Optimizer, group: Any) -> Hashable:
    return flags_of(group, options_in(group, named_options(type(optimizer))))


def _likeness(optimizer: Optimizer, target: torch.device) -> Hashable:
    groups = distinct(optimizer.param_groups, named_options(type(optimizer)))
    kinds = [(options_of(optimizer, group), frozenset(map(kind_of, group["params"]))) for group in groups]
    stored = stored_dict(optimizer) or {}
    names = [name for name, value in stored.items() if type(value) in ATOMS]
    return target.type, tuple(kinds), flags_of(stored, names), flags_of(optimizer.defaults, optimizer.defaults)


def _learned(optimizer: Optimizer, target: torch.device) -> LearnedPlaces:
    names = {name for state in optimizer.state.values() if isinstance(state, dict) for name in state}
    why, until = "", time.perf_counter() + _MOST_SECONDS
    for how in (_with_flags, _without_flags, _as_copy):
        learned = _tried(optimizer, FirstStepMode(target, until), how, names)
        if not learned.why_not:
            return learned
        why = why or learned.why_not
    return LearnedPlaces(why)


def _tried(optimizer: Optimizer, simulation: FirstStepMode, how: Any, names: set[Any]) -> LearnedPlaces:
    try:
        with contained(), simulation:
            maker = Maker(optimizer, simulation)
            made = how(maker)
            learned = LearnedPlaces()
            for number in (1, 2):
                _step(maker, made, number)
                for place, tensor in _made_by_step(maker, made):
                    learned.add(place, tensor)
                if all(learned.has("state", name) for name in names):
                    break
    except KeyboardInterrupt:
        raise
    except (Exception, GivenUp, SystemExit) as error:
        return LearnedPlaces(_text_of(error))
    return learned


def _with_flags(maker: Maker) -> Optimizer:
    return maker.constructed(with_flags=True)


def _without_flags(maker: Maker) -> Optimizer:
    return maker.constructed(with_flags=False)


def _as_copy(maker: Maker) -> Optimizer:
    return maker.copy()


def _step(maker: Maker, made: Optimizer, number: int) -> None:
    """Call `step()` as usual; if that fails, with a closure; if that fails, with sparse gradients."""
    train = getattr(made, "train", None)
    if number == 1 and callable(train):
        train()

    def closure() -> Any:
        set_gradients(maker, number, sparse=False)
        return torch.ones((), device=maker.simulation.device)

    first: Exception | None = None
    for sparse, given in ((False, ()), (False, (closure,)), (True, ())):
        set_gradients(maker, number, sparse=sparse)
        try:
            made.step(*given)
        except Exception as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def _made_by_step(maker: Maker, made: Optimizer) -> Iterator[tuple[EntryPlace, Tensor]]:
    for place, tensor in _entries(maker, made):
        if id(tensor) not in maker.given:
            yield place, tensor


def _entries(maker: Maker, made: Optimizer) -> Iterator[tuple[EntryPlace, Tensor]]:
    stored = stored_dict(made) or {}
    flags = {id(p): _flags(maker, group) for group in made.param_groups for p in group["params"]}
    for parameter, state in stored.get("state", {}).items():
        kind = kind_of(parameter) if isinstance(parameter, Tensor) else None
        for steps, tensor in tensors_in(state, ()):
            yield EntryPlace("state", steps or UNNAMED, flags.get(id(parameter)), kind), tensor
    for group in stored.get("param_groups", ()):
        inside = {name: value for name, value in group.items() if name != "params"}
        for steps, tensor in tensors_in(inside, ()):
            yield EntryPlace("group", steps, _flags(maker, group)), tensor
    for name, value in stored.items():
        if name not in ("state", "param_groups", "defaults"):
            for steps, tensor in tensors_in(value, (name,)):
                yield EntryPlace("attribute", steps), tensor


def _flags(maker: Maker, group: Any) -> Hashable:
    return flags_of(group, options_in(group, maker.named))


def _text_of(error: BaseException) -> str:
    if isinstance(error, (GivenUp, Unmakable)):
        return str(error)
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
