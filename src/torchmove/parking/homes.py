"""The way back: where everything was, and where what is new belongs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmove.planning.keep import keep_of
from torchmove.planning.placement import Places
from torchmove.planning.plan import Plan, Repoint
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.tensors import Slots


@dataclass(frozen=True)
class Homes:
    """Where everything was: each tensor's device, None for what was not parked, and the remembered devices."""

    tensors: Mapping[int, tuple[weakref.ref[Tensor], torch.device | None]]
    repoints: tuple[Repoint, ...]
    main: torch.device | None  # where most of it was
    keep: Sequence[Any]  # what was to stay

    def of(self, tensor: Tensor) -> tuple[bool, torch.device | None]:
        """Was it there, and where is it to go?"""
        found = self.tensors.get(id(tensor))
        return (True, found[1]) if found is not None and found[0]() is tensor else (False, None)


def homes_of(plan: Plan, keep: Sequence[Any] = ()) -> Homes:
    slots = plan.inventory.slots
    homes: list[torch.device | None] = [None] * len(slots)
    for index in plan.moves.slots():
        homes[index] = slots.looks.devices[index]
    known = dict(zip(map(id, slots.tensors), zip(map(weakref.ref, slots.tensors), homes, strict=True), strict=True))
    weight: Counter[torch.device] = Counter()
    for (home, _), indices in plan.moves.ways.items():
        weight[home] += sum(plan.moves.nbytes[index] for index in indices)
    main = weight.most_common(1)[0][0] if weight else None
    return Homes(known, plan.repoints, main, keep)


def placement_back(inventory: Inventory, homes: Homes) -> list[torch.device]:
    """Back where it was. What has come since goes where a move would put it; a gradient to its parameter."""
    slots = inventory.slots
    placement = list(slots.looks.devices)
    new: list[int] = []
    for index, tensor in enumerate(slots.tensors):
        was_there, home = homes.of(tensor)
        if not was_there:
            new.append(index)
        elif home is not None:
            placement[index] = home
    if new and homes.main is not None:
        objects = dict(zip(inventory.roots, inventory.objects, strict=True))
        would = Places(inventory, homes.main, keep_of(objects, homes.keep)).all()
        for index in new:
            placement[index] = would[index]
        for index in new:
            beside = _parameter_of(slots, index, inventory)
            if beside is not None and would[index] == homes.main:
                placement[index] = placement[beside]
    return placement


def _parameter_of(slots: Slots, index: int, inventory: Inventory) -> int | None:
    """The slot of the parameter that a gradient, or an optimizer's state, belongs to."""
    owner = slots[index].owner
    return None if owner is None or owner.parameter is None else inventory.number.get(owner.parameter)


def repoints_back(homes: Homes) -> list[Repoint]:
    """The remembered devices, as they were."""
    return [Repoint(value._replace(value=new), value.value) for value, new in homes.repoints]
