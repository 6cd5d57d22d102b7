"""Where each optimizer itself puts its tensors: a user's rule says it, torch's table, or a first step of its class.

Torch's own classes are in the table. Of any other class, `learning` takes a first step, when one of its tensors is
asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchmove import _paths, _rules, learning
from torchmove._paths import Path
from torchmove._records import Inventory, Note, Slot
from torchmove._stored import stored_dict
from torchmove.learning import Births, Place

_GUESSED = (
    "where it keeps its scalars could not be learned ({}): they go beside their parameters, `step` to the CPU; "
    "tm.register_rule({}, name, place) says better"
)


class NativePlaces:
    def __init__(self, inventory: Inventory, target: torch.device) -> None:
        self.inventory, self.target = inventory, target
        self.births: dict[int, Births] = {}  # by the optimizer's id
        self.flags: dict[int, Hashable] = {}  # by the group's id
        self.guessed: dict[int, Optimizer] = {}  # those that have scalars of which nothing is known

    def on_cpu(self, slot: Slot) -> bool:
        """Does the optimizer keep this tensor on the CPU?"""
        owner = slot.owner
        if owner is None or owner.optimizer is None:
            return False
        optimizer, group, is_scalar = owner.optimizer, owner.group, slot.tensor.numel() == 1
        place = self.place_of(slot)
        key = "*" if place.holder == "group" else str(place.steps[0])
        if is_scalar and group is not None:
            rule = _rules.users_rule(type(optimizer), key)
            if rule is not None:
                return rule(group) == "cpu"
        if learning.is_torchs_own(type(optimizer)):
            return is_scalar and group is not None and _rules.by_table(type(optimizer), key, group)
        on_cpu = self.births_of(optimizer).on_cpu(place)
        if on_cpu is None and is_scalar and group is not None:
            return self.guess(optimizer, group, place, key, slot.tensor)
        return bool(on_cpu)

    def guess(self, optimizer: Optimizer, group: Mapping[str, Any], place: Place, key: str, tensor: Tensor) -> bool:
        """Of a scalar that nobody has seen being born. One that is wrongly with the parameter is slower; one that is
        wrongly on the CPU may break the next step."""
        if place.holder == "group":
            given = place.steps[0] == "lr" or isinstance(optimizer.defaults.get(str(place.steps[0])), Tensor)
            if given:  # by the user, as a hyperparameter
                return _rules.by_table(type(optimizer), key, group)
        failed = bool(self.births_of(optimizer).why_not)
        if failed:
            self.guessed[id(optimizer)] = optimizer
        return failed and place.holder == "state" and tensor.dim() == 0 and _rules.by_table(type(optimizer), key, group)

    def births_of(self, optimizer: Optimizer) -> Births:
        births = self.births.get(id(optimizer))
        if births is None:
            births = self.births[id(optimizer)] = learning.births_of(optimizer, self.target)
        return births

    def varies(self, optimizer: Any) -> bool:
        """Does the place of an entry depend on the kind of its parameter?"""
        births = self.births.get(id(optimizer))
        return births is not None and births.varies

    def keeps_large(self, optimizer: Any) -> bool:
        births = self.births.get(id(optimizer))
        return births is not None and births.large_on_cpu

    def large(self) -> Iterator[int]:
        """The state of optimizers that keep more than scalars on the CPU."""
        optimizers = [each for each, _ in self.inventory.holders.values() if issubclass(type(each), Optimizer)]
        unknown = [each for each in optimizers if not learning.is_torchs_own(type(each))]
        kept = [self.births_of(each) for each in unknown if _keeps_any(each)]
        if any(births.large_on_cpu for births in kept):
            for index, slot in enumerate(self.inventory.slots):
                if slot.owner is not None and self.keeps_large(slot.owner.optimizer):
                    yield index

    def place_of(self, slot: Slot) -> Place:
        assert slot.owner is not None
        optimizer, group, parameter = slot.owner
        if group is None:
            return Place("attribute", _steps(slot, self.inventory.holders[id(optimizer)][1]))
        flags = self.flags.get(id(group))
        if flags is None:
            flags = self.flags[id(group)] = learning.options_of(optimizer, group)
        if parameter is None:
            return Place("group", _steps(slot, None), flags)
        at = self.inventory.number.get(parameter)
        kind = None if at is None else learning.kind_of(self.inventory.slots.tensors[at])
        return Place("state", _steps(slot, None), flags, kind)

    def notes(self) -> Iterator[Note]:
        for optimizer in self.guessed.values():
            name, why = type(optimizer).__name__, self.births_of(optimizer).why_not
            yield Note("N063", str(self.inventory.holders[id(optimizer)][1]), _GUESSED.format(why, name))


def _keeps_any(optimizer: Optimizer) -> bool:
    """Has it a state, or elsewhere what may be one?"""
    stored = stored_dict(optimizer) or {}
    besides = {name: value for name, value in stored.items() if name not in ("param_groups", "defaults")}
    groups = [{**group, "params": ()} for group in stored.get("param_groups", ())]
    return next(learning.tensors_in([besides, groups], ()), None) is not None


_HOLDERS = {(_paths.ATTRIBUTE, "state"), (_paths.ATTRIBUTE, "param_groups")}


def _steps(slot: Slot, holder: Path | None) -> tuple[Hashable, ...]:
    """The names on the way to a tensor: from its optimizer (`holder`), its parameter or its group."""
    names: list[Any] = []
    step: Path | None = slot.path
    while step is not None and step is not holder:
        before = step.before
        if holder is None and before is not None and (before.how, before.what) in _HOLDERS:
            break
        names.append(step.what)
        step = before
    return learning.plain(reversed(names)) or learning.UNNAMED
