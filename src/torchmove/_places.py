"""Where each tensor goes: to the target, unless it is kept or belongs elsewhere; and then why."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, count
from typing import Any

import torch

from torchmove import _paths, _rules
from torchmove._native import NativePlaces
from torchmove._paths import Path
from torchmove._records import Inventory, Owner, Slot
from torchmove._storage import can_rebind_result

_CPU = torch.device("cpu")
KEPT = "kept, as asked"  # why what `keep=` names stays
_LARGEST_SCALAR = 8  # bytes, of a float64


class Keep:
    """What the user wants to stay: objects, with everything in them, and path patterns."""

    def __init__(self, objects: Inventory, patterns: Sequence[str]) -> None:
        # An optimizer that is kept keeps its state, not the parameters it works on.
        found = [(each.tensor, each.path) for each in objects.slots]
        found += [(each.tensor, each.path) for each in objects.shells]
        self.tensors = {id(tensor) for tensor, path in found if "param_groups" not in path.names()}
        self.holders = set(objects.holders)
        self.patterns = {pattern: _paths.matcher(pattern) for pattern in patterns}
        self.roots = dict(zip(objects.roots, objects.objects, strict=True))

    def has(self, thing: Any, paths: Iterable[Path]) -> bool:
        if id(thing) in self.tensors or id(thing) in self.holders:
            return True
        return bool(self.patterns) and any(fits(path) for path in paths for fits in self.patterns.values())


class Places:
    """Where each slot goes, and why it does not go to the target."""

    def __init__(self, inventory: Inventory, target: torch.device, keep: Keep) -> None:
        self.inventory, self.slots, self.number = inventory, inventory.slots, inventory.number
        self.target, self.keep, self.keeps = target, keep, bool(keep.tensors or keep.patterns)
        self.native = NativePlaces(inventory, target)
        self.why: dict[int, str] = {}
        self.known: dict[int, torch.device] = {}
        self.why_alike: dict[Hashable, str] = {}  # why a scalar is on the CPU, by what it has in common with others

    def all(self) -> list[torch.device]:
        if self.keeps:
            return [self.of_slot(index) for index in range(len(self.slots))]
        # Where nothing is kept, only what an optimizer keeps on the CPU and random states go elsewhere than to the
        # target.
        placement, nbytes, dtypes = [self.target] * len(self.slots), self.slots.looks.nbytes, self.slots.looks.dtypes
        is_elsewhere = self.target != _CPU  # than where scalars belong
        scalars = [*compress(count(), map(_LARGEST_SCALAR.__ge__, nbytes))] if is_elsewhere else []
        others = compress(count(), map("tensor".__eq__, self.slots.roles()))
        for index, likeness in zip(scalars, self.slots.likenesses(scalars), strict=True):
            is_one = nbytes[index] == dtypes[index].itemsize
            why = self.why_alike.get(likeness)
            if not why or not is_one:
                placement[index] = self.decide(index, self.slots[index], likeness if is_one else None)
            else:
                placement[index], self.why[index] = _CPU, why
        on_host = compress(count(), map("host".__eq__, self.slots.roles()))
        large = list(self.native.large()) if is_elsewhere else []
        for index in {*others, *self.spent_gradients(), *large}.difference(scalars) | {*on_host}:
            placement[index] = self.decide(index, self.slots[index])
        return placement

    def spent_gradients(self) -> Iterator[int]:
        """The gradients that stored results of spent graphs retain: they stay where those do."""
        for index in self.inventory.spent:
            if self.slots.tensors[index].retains_grad:
                yield from filter(None, [self.number.get(id(self.slots.tensors[index].grad))])

    def of_slot(self, index: int) -> torch.device:
        place = self.known.get(index)
        if place is None:
            place = self.known[index] = self.decide(index, self.slots[index])
        return place

    def decide(self, index: int, slot: Slot, likeness: Hashable = None) -> torch.device:
        owner = slot.owner
        if self.keeps and self.keep.has(slot.tensor, self.paths(slot)):
            return self.stay(index, slot.device, KEPT)
        if owner is not None:
            why = self.why_on_cpu(owner, slot, likeness) if self.target != _CPU else ""
            if why:
                return self.stay(index, _CPU, why)
        if owner is not None and owner.group is not None:
            beside = self.of(owner.parameter, index)
            return self.target if beside is self.target else self.stay(index, beside, "stays beside its tensor")
        if slot.role == "host" and slot.device == _CPU:
            other = self.beside_host.get(index)
            if other is not None:
                return self.of_slot(other)
            return self.stay(index, _CPU, "its library computes with it on the CPU")
        if slot.role == "tensor" and _rules.is_rng_state(slot):
            return self.stay(index, slot.device, "the state of a random number generator")
        if index in self.inventory.spent and not can_rebind_result(slot.tensor, self.target):
            return self.stay(index, slot.device, "torch holds it through the gradient that it retains")
        return self.target

    @cached_property
    def beside_host(self) -> dict[int, int]:
        """Where memory is shared with what does not belong on the CPU, all of it goes: by the slot, one such."""
        roles = [*self.slots.roles()]
        found: dict[int, int] = {}
        for block in self.inventory.blocks.shared():
            leaving = [index for index in block.slots if roles[index] != "host"]
            found.update((index, leaving[0]) for index in block.slots if leaving and index not in leaving)
        return found

    def why_on_cpu(self, owner: Owner, slot: Slot, likeness: Hashable) -> str:
        """Why the CPU is the place for a tensor of an optimizer, if it is."""
        if likeness in self.why_alike:
            return self.why_alike[likeness]
        may_be = slot.nbytes <= _LARGEST_SCALAR or owner.group is None or self.native.keeps_large(owner.optimizer)
        on_cpu = may_be and self.native.on_cpu(slot)
        why = f"{type(owner.optimizer).__name__} keeps its {slot.what} on the CPU" if on_cpu else ""
        if likeness is not None and not self.native.varies(owner.optimizer):
            self.why_alike[likeness] = why
        return why

    def of(self, parameter: int | None, asking: int) -> torch.device:
        home = asking if parameter is None else self.number.get(parameter, asking)
        return self.target if home == asking else self.of_slot(home)

    def stay(self, index: int, device: torch.device, why: str) -> torch.device:
        if device == self.target:
            return self.target
        self.why[index] = why
        return device

    def paths(self, slot: Slot) -> Iterator[Path]:
        """Those by which it is part of the state; that an optimizer works on it does not make it the optimizer's."""
        yield slot.path
        others = self.inventory.other_paths.get(id(slot.tensor), ())
        yield from (path for path in others if "param_groups" not in path.names())
