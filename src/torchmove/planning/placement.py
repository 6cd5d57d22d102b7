"""The device of each tensor of the state, and why some do not go to the target.

An optimizer's scalars go where the optimizer itself would put them, which is not always the device of the parameter:
Adam keeps `step` on the CPU, unless the whole update runs on the device (`capturable`, `fused`). With the steps on the
device, each update would synchronize once per parameter. A user's rule says where, else the table for torch's own
classes, with a row for each entry that does not follow its parameter, else a simulated first step (`learning`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress, count
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from torchmove.internals.rebinding import can_rebind_result
from torchmove.internals.stored import stored_dict
from torchmove.planning.learning import (
    UNNAMED,
    EntryPlace,
    LearnedPlaces,
    kind_of,
    learned_places_of,
    options_of,
    plain_steps,
    tensors_in,
)
from torchmove.planning.plan import Note
from torchmove.surveying.inventory import Inventory, StateTensor
from torchmove.surveying.paths import ATTRIBUTE, Owner, Path, matcher, names_of
from torchmove.surveying.readers.libraries import HELPERS, HelperRule, Place
from torchmove.surveying.survey import survey_objects

Group = Mapping[str, Any]
Rule = Callable[[Group], Place]

# The size of a CPU generator's state (Mersenne Twister); accelerators use Philox.
_RNG_STATE_BYTES = 5056


def _on_cpu_unless(*flags: str) -> Rule:
    def place(group: Group) -> Place:
        return "parameter" if any(group.get(flag) for flag in flags) else "cpu"

    return place


def _with_parameter(_: Group) -> Place:
    return "parameter"


# The first class in an optimizer's method resolution order with a row decides. `*` stands for values of the group: lr,
# betas.
_TABLE: dict[tuple[type, str], Rule] = {
    (optim.Optimizer, "step"): _on_cpu_unless("capturable", "fused"),
    (optim.Optimizer, "*"): _on_cpu_unless("capturable", "fused"),
    (optim.NAdam, "mu_product"): _on_cpu_unless("capturable"),
    (optim.ASGD, "step"): _with_parameter,
    (optim.ASGD, "eta"): _with_parameter,
    (optim.ASGD, "mu"): _with_parameter,
}
_USERS: dict[tuple[type, str], Rule] = {}


def register_rule(kind: type, key: str, place: Place | Rule | HelperRule) -> None:
    """Say where an optimizer keeps a scalar of its state, or where another object keeps an attribute.

    Mostly no rule is needed: a simulated first step of the optimizer's class shows it. A rule takes precedence.

    Args:
        kind: the class; the rule also holds for its subclasses.
        key: for an optimizer, the name in a parameter's state, or "*" for tensors among the values of a group. For
            any other object, the name of an attribute, or "*" for all attributes without a rule.
        place: "cpu", "parameter" (the device of the parameters), or a function that returns one of them: it gets the
            group of an optimizer, or the object itself. With "cpu", an attribute stays on the CPU if it is there. With
            "data", an attribute is a dataset: it is not searched, and its tensors stay.

    Raises:
        ValueError: `place` is not one of these.

    Examples:
        >>> import torch, torchmove as tm
        >>> class Clocked(torch.optim.SGD):
        ...     pass                                  # keeps state["ticks"], a counter, on the CPU
        >>> tm.register_rule(Clocked, "ticks", "cpu")
        >>> tm.register_rule(Clocked, "scale", lambda group: "parameter" if group["fused"] else "cpu")
        >>> class NoiseSchedule:
        ...     pass                                  # computes its sigmas with numpy
        >>> tm.register_rule(NoiseSchedule, "sigmas", "cpu")
        >>> class Experiment:
        ...     pass                                  # its train_set is a list of tensors
        >>> tm.register_rule(Experiment, "train_set", "data")
    """
    if not isinstance(kind, type):
        raise TypeError(
            f"tm.register_rule takes a class, not {type(kind).__name__}. Fix: tm.register_rule(type(it), ...)"
        )
    if not callable(place) and place not in ("cpu", "parameter", "data"):
        raise ValueError(f"place must be 'cpu', 'parameter', 'data' or a function, not {place!r}. Fix: place='cpu'")
    if issubclass(kind, optim.Optimizer) and place == "data":
        raise ValueError(f"{kind.__name__} is an optimizer: 'data' is for other objects. Fix: place='cpu'")
    if issubclass(kind, optim.Optimizer):
        _USERS[kind, key] = _checked(place) if callable(place) else lambda _: place
    else:
        HELPERS.setdefault(kind, {})[key] = place


def _checked(rule: Rule) -> Rule:
    """A user's rule, whose answer has to be a place."""

    def place_of(group: Group) -> Place:
        place = rule(group)
        if place not in ("cpu", "parameter"):
            raise ValueError(f"a rule of tm.register_rule returned {place!r}. Fix: return 'cpu' or 'parameter'")
        return place

    return place_of


def users_rule(kind: type, key: str) -> Rule | None:
    """The user's rule for a scalar of this name in an optimizer of this class."""
    return _first(_USERS, kind, key) if _USERS else None


def by_table(kind: type, key: str, group: Group) -> bool:
    """Whether the table says that an optimizer of this class keeps its scalar of this name on the CPU."""
    rule = _first(_TABLE, kind, key)
    return rule is not None and rule(group) == "cpu"


def _first(rules: Mapping[tuple[type, str], Rule], kind: type, key: str) -> Rule | None:
    return next((rules[base, key] for base in kind.__mro__ if (base, key) in rules), None)


def is_rng_state(entry: StateTensor) -> bool:
    """Whether this is the state of a random number generator, which torch accepts from the CPU only."""
    if entry.tensor.dtype is not torch.uint8 or entry.tensor.dim() != 1:
        return False
    return entry.nbytes == _RNG_STATE_BYTES or any("rng" in name.lower() for name in entry.path.names())


_GUESSED = (
    "a simulated first step could not show where it keeps its scalars ({}): `step` goes to the CPU, all others to the "
    "device of their parameters; tm.register_rule({}, name, place) overrides this"
)


def is_torchs_own(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim.")


class OptimizerPlaces:
    """Where optimizers keep their tensors: on the CPU, or on the device of their parameters."""

    def __init__(self, inventory: Inventory, target: torch.device) -> None:
        self.inventory, self.target = inventory, target
        self.learned: dict[int, LearnedPlaces] = {}  # by the optimizer's id
        self.flags: dict[int, Hashable] = {}  # by the group's id
        self.guessed: dict[int, Optimizer] = {}  # those with scalars of unknown place

    def on_cpu(self, entry: StateTensor) -> bool:
        """Whether the optimizer keeps this tensor on the CPU."""
        owner = entry.owner
        if owner is None or owner.optimizer is None:
            return False
        optimizer, group, is_scalar = owner.optimizer, owner.group, entry.tensor.numel() == 1
        key = "*" if owner.parameter is None else str(_steps(entry, None)[0])
        if is_scalar and group is not None:
            rule = users_rule(type(optimizer), key)
            if rule is not None:
                return rule(group) == "cpu"
        if is_torchs_own(type(optimizer)):
            return is_scalar and group is not None and by_table(type(optimizer), key, group)
        place = self.place_of(entry)
        on_cpu = self.learned_for(optimizer).on_cpu(place)
        if on_cpu is None and is_scalar and group is not None:
            return self.guess(optimizer, group, place, key, entry.tensor)
        return bool(on_cpu)

    def guess(
        self, optimizer: Optimizer, group: Mapping[str, Any], place: EntryPlace, key: str, tensor: Tensor
    ) -> bool:
        """Whether a scalar that no first step made belongs on the CPU.

        A scalar that is wrongly on the device of its parameter is slower; one that is wrongly on the CPU may break the
        step.
        """
        if place.holder == "group":
            given = place.steps[0] == "lr" or isinstance(optimizer.defaults.get(str(place.steps[0])), Tensor)
            if given:  # a hyperparameter, which the user passed
                return by_table(type(optimizer), key, group)
        failed = bool(self.learned_for(optimizer).why_not)
        if failed:
            self.guessed[id(optimizer)] = optimizer
        return failed and place.holder == "state" and tensor.dim() == 0 and by_table(type(optimizer), key, group)

    def learned_for(self, optimizer: Optimizer) -> LearnedPlaces:
        learned = self.learned.get(id(optimizer))
        if learned is None:
            learned = self.learned[id(optimizer)] = learned_places_of(optimizer, self.target)
        return learned

    def varies(self, optimizer: Any) -> bool:
        """Whether the place of an entry depends on the dtype and shape of its parameter."""
        learned = self.learned.get(id(optimizer))
        return learned is not None and learned.varies

    def keeps_large(self, optimizer: Any) -> bool:
        """Whether the optimizer keeps more than scalars on the CPU."""
        learned = self.learned.get(id(optimizer))
        return learned is not None and learned.large_on_cpu

    def large(self) -> Iterator[int]:
        """The tensors of optimizers that keep more than scalars on the CPU."""
        optimizers = [each for each, _ in self.inventory.holders.values() if issubclass(type(each), Optimizer)]
        unknown = [each for each in optimizers if not is_torchs_own(type(each))]
        kept = [self.learned_for(each) for each in unknown if _keeps_any(each)]
        if any(learned.large_on_cpu for learned in kept):
            for index, entry in enumerate(self.inventory.tensors):
                if entry.owner is not None and self.keeps_large(entry.owner.optimizer):
                    yield index

    def place_of(self, entry: StateTensor) -> EntryPlace:
        assert entry.owner is not None
        optimizer, group, parameter = entry.owner
        if group is None:
            return EntryPlace("attribute", _steps(entry, self.inventory.holders[id(optimizer)][1]))
        flags = self.flags.get(id(group))
        if flags is None:
            flags = self.flags[id(group)] = options_of(optimizer, group)
        if parameter is None:
            return EntryPlace("group", _steps(entry, None), flags)
        at = self.inventory.number.get(parameter)
        kind = None if at is None else kind_of(self.inventory.tensors.objects[at])
        return EntryPlace("state", _steps(entry, None), flags, kind)

    def notes(self) -> Iterator[Note]:
        for optimizer in self.guessed.values():
            name, why = type(optimizer).__name__, self.learned_for(optimizer).why_not
            yield Note("N063", str(self.inventory.holders[id(optimizer)][1]), _GUESSED.format(why, name))


def _keeps_any(optimizer: Optimizer) -> bool:
    """Whether an optimizer holds any tensor besides its parameters."""
    stored = stored_dict(optimizer) or {}
    besides = {name: value for name, value in stored.items() if name not in ("param_groups", "defaults")}
    groups = [{**group, "params": ()} for group in stored.get("param_groups", ())]
    return next(tensors_in([besides, groups], ()), None) is not None


_HOLDERS = {(ATTRIBUTE, "state"), (ATTRIBUTE, "param_groups")}


def _steps(entry: StateTensor, holder: Path | None) -> tuple[Hashable, ...]:
    """The names on the path to a tensor: from its optimizer (`holder`), its parameter or its group."""
    names: list[Any] = []
    step: Path | None = entry.path
    while step is not None and step is not holder:
        before = step.before
        if holder is None and before is not None and (before.how, before.what) in _HOLDERS:
            break
        names.append(step.what)
        step = before
    return plain_steps(reversed(names)) or UNNAMED


_CPU = torch.device("cpu")
KEPT = "kept by keep="  # the reason for what `keep=` names
_LARGEST_SCALAR = 8  # bytes, of a float64


class Targets:
    """Devices by pattern: that of the first pattern that matches a path.

    A gradient and the optimizer state of a parameter go with it, whatever their own paths match.
    """

    def __init__(self, devices: Mapping[str, torch.device]) -> None:
        self.devices = dict(devices)
        self._patterns = {pattern: matcher(pattern) for pattern in devices}

    @property
    def main(self) -> torch.device:
        """The first accelerator, else the first device: optimizers are placed as on this one."""
        return next((each for each in self.devices.values() if each != _CPU), next(iter(self.devices.values())))

    def pattern_of(self, path: Path) -> str | None:
        """The pattern that decides, or None."""
        return next((name for name, fits in self._patterns.items() if fits(path)), None)

    def of(self, path: Path) -> torch.device | None:
        pattern = self.pattern_of(path)
        return None if pattern is None else self.devices[pattern]


class TensorPlaces:
    """The target device of each tensor, and the reason where that is not the target of the move."""

    def __init__(self, inventory: Inventory, target: torch.device, keep: Keep, targets: Targets | None = None) -> None:
        self.inventory, self.tensors, self.number = inventory, inventory.tensors, inventory.number
        self.target, self.keep, self.keeps = target, keep, bool(keep.tensors or keep.patterns)
        self.targets = targets
        self.unmatched: list[int] = []  # tensors that no pattern of `targets` matches
        self.native = OptimizerPlaces(inventory, target)
        self.why: dict[int, str] = {}
        self.known: dict[int, torch.device] = {}
        self.why_alike: dict[Hashable, str] = {}  # why a scalar is on the CPU, by its likeness

    def all(self) -> list[torch.device]:
        if self.keeps or self.targets is not None:
            return [self.of_tensor(index) for index in range(len(self.tensors))]
        # Without `keep=`, only optimizer tensors that belong on the CPU, tensors of libraries that compute there, and
        # random states do not go to the target.
        placement, nbytes, dtypes = (
            [self.target] * len(self.tensors),
            self.tensors.metadata.nbytes,
            self.tensors.metadata.dtypes,
        )
        is_elsewhere = self.target != _CPU  # the target is not the CPU, where scalars belong
        scalars = [*compress(count(), map(_LARGEST_SCALAR.__ge__, nbytes))] if is_elsewhere else []
        others = compress(count(), map("tensor".__eq__, self.tensors.roles()))
        for index, likeness in zip(scalars, self.tensors.likenesses(scalars), strict=True):
            is_one = nbytes[index] == dtypes[index].itemsize
            why = self.why_alike.get(likeness)
            if not why or not is_one:
                placement[index] = self.decide(index, self.tensors[index], likeness if is_one else None)
            else:
                placement[index], self.why[index] = _CPU, why
        on_host = compress(count(), map("host".__eq__, self.tensors.roles()))
        large = list(self.native.large()) if is_elsewhere else []
        for index in {*others, *self.spent_gradients(), *large}.difference(scalars) | {*on_host}:
            placement[index] = self.decide(index, self.tensors[index])
        return placement

    def spent_gradients(self) -> Iterator[int]:
        """The gradients that stored results of spent graphs retain: they stay with those."""
        for index in self.inventory.spent:
            if self.tensors.objects[index].retains_grad:
                yield from filter(None, [self.number.get(id(self.tensors.objects[index].grad))])

    def of_tensor(self, index: int) -> torch.device:
        place = self.known.get(index)
        if place is None:
            place = self.known[index] = self.decide(index, self.tensors[index])
        return place

    def target_of(self, index: int, entry: StateTensor) -> torch.device:
        """Where a tensor goes unless there is a reason to stay."""
        if self.targets is None:
            return self.target
        parameter = None if entry.owner is None else self.number.get(entry.owner.parameter or 0)
        if parameter is not None and parameter != index:
            return self.target_of(parameter, self.tensors[parameter])
        # A pattern that means one of its paths counts for the tensor, before `*`, which means everything else.
        patterns = [each for each in map(self.targets.pattern_of, self.paths(entry)) if each is not None]
        if not patterns:
            self.unmatched.append(index)
            return entry.device
        return self.targets.devices[next((each for each in patterns if each != "*"), "*")]

    def decide(self, index: int, entry: StateTensor, likeness: Hashable = None) -> torch.device:
        owner, target = entry.owner, self.target_of(index, entry)
        if self.keeps and self.keep.has(entry.tensor, self.paths(entry)):
            return self.stay(index, entry.device, KEPT, target)
        if owner is not None:
            why = self.why_on_cpu(owner, entry, likeness) if target != _CPU else ""
            if why:
                return self.stay(index, _CPU, why, target)
        if owner is not None and owner.group is not None:
            beside = self.of(owner.parameter, index, target)
            if target == _CPU == entry.device:
                return target  # a move to the CPU takes nothing off it: a `step` there stays, wherever its parameter is
            return target if beside is target else self.stay(index, beside, "stays beside its tensor", target)
        if entry.role == "host" and entry.device == _CPU:
            other = self.beside_host.get(index)
            if other is not None:
                return self.of_tensor(other)
            return self.stay(index, _CPU, "its library computes with it on the CPU", target)
        if entry.role == "tensor" and is_rng_state(entry):
            return self.stay(index, entry.device, "the state of a random number generator", target)
        if index in self.inventory.spent and not can_rebind_result(entry.tensor, target):
            return self.stay(index, entry.device, "torch cannot rebind it while it retains its gradient", target)
        return target

    @cached_property
    def beside_host(self) -> dict[int, int]:
        """For a tensor that shares memory with one that does not belong on the CPU: the index of that one."""
        roles = [*self.tensors.roles()]
        found: dict[int, int] = {}
        for storage in self.inventory.storages.shared():
            leaving = [index for index in storage.indices if roles[index] != "host"]
            found.update((index, leaving[0]) for index in storage.indices if leaving and index not in leaving)
        return found

    def why_on_cpu(self, owner: Owner, entry: StateTensor, likeness: Hashable) -> str:
        """Why a tensor of an optimizer belongs on the CPU, or an empty string."""
        if likeness in self.why_alike:
            return self.why_alike[likeness]
        may_be = entry.nbytes <= _LARGEST_SCALAR or owner.group is None or self.native.keeps_large(owner.optimizer)
        on_cpu = may_be and self.native.on_cpu(entry)
        why = f"{type(owner.optimizer).__name__} keeps its {entry.what} on the CPU" if on_cpu else ""
        if likeness is not None and not self.native.varies(owner.optimizer):
            self.why_alike[likeness] = why
        return why

    def of(self, parameter: int | None, asking: int, target: torch.device) -> torch.device:
        owner_index = asking if parameter is None else self.number.get(parameter, asking)
        return target if owner_index == asking else self.of_tensor(owner_index)

    def stay(self, index: int, device: torch.device, why: str, target: torch.device) -> torch.device:
        if device == target:
            return target
        self.why[index] = why
        return device

    def paths(self, entry: StateTensor) -> Iterator[Path]:
        """The paths by which it is part of the state; those by which an optimizer lists it do not count."""
        yield entry.path
        others = self.inventory.other_paths.get(id(entry.tensor), ())
        yield from (path for path in others if "param_groups" not in path.names())


class Keep:
    """The tensors and holders that `keep=` names: objects, with everything in them, and path patterns."""

    def __init__(self, objects: Inventory | None = None, patterns: Sequence[str] = ()) -> None:
        self.tensors: set[int] = set()
        self.holders: set[int] = set()
        self.roots: dict[str, Any] = {}
        self.patterns = {pattern: matcher(pattern) for pattern in patterns}
        if objects is not None:
            # To keep an optimizer keeps its state, not the parameters that it trains.
            found = [(each.tensor, each.path) for each in (*objects.tensors, *objects.composites)]
            self.tensors = {id(tensor) for tensor, path in found if "param_groups" not in path.names()}
            self.holders = set(objects.holders)
            self.roots = dict(zip(objects.roots, objects.objects, strict=True))

    def has(self, value: Any, paths: Iterable[Path]) -> bool:
        if id(value) in self.tensors or id(value) in self.holders:
            return True
        return bool(self.patterns) and any(fits(path) for path in paths for fits in self.patterns.values())


def keep_of(objects: dict[str, Any], keep: Sequence[Any]) -> Keep:
    if isinstance(keep, str) or not isinstance(keep, (list, tuple, set, frozenset)):
        raise TypeError("keep= needs a list of objects and path patterns. Fix: keep=[ema, 'model.*.table']")
    patterns = [each for each in keep if isinstance(each, str)]
    kept = [_holder(each, objects) for each in keep if not isinstance(each, str)]
    if not kept:
        return Keep(patterns=patterns)
    ids = {id(each) for each in kept}
    # A given object that is not kept is not kept either where a kept object holds it.
    besides = [each for each in objects.values() if id(each) not in ids]
    known = {id(value): name for name, value in objects.items()}
    named = {known.get(id(each), name): each for name, each in names_of(kept, None).items()}
    return Keep(survey_objects(named, besides=besides), patterns)


def _holder(each: Any, objects: dict[str, Any]) -> Any:
    """The optimizer for `optimizer.state`: its keys are the parameters, which stay out of what an optimizer keeps."""
    optimizers = (one for one in objects.values() if isinstance(one, Optimizer))
    return next((one for one in optimizers if one.state is each), each)
