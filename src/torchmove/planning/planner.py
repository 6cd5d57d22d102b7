"""Make a plan: storages move or stay with a reason, and every problem becomes a refusal.

Planning changes nothing and uses no device: the free memory of each device is passed in.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from operator import ne
from typing import NamedTuple

import torch

from torchmove.devices import is_same_device
from torchmove.internals.guards import makes_fakes
from torchmove.internals.metadata import has_storage
from torchmove.internals.views import packed
from torchmove.planning.placement import Keep, TensorPlaces
from torchmove.planning.plan import MemoryNeed, Moves, Plan, Refusal, Repoint
from torchmove.planning.refusals import (
    FAKES,
    Course,
    keep_refusals,
    mixed_dtype_refusals,
    mps_refusals,
    no_storages_note,
    notes_of,
    refusals_of,
    room_refusals,
    shared_memory_notes,
    sub_byte_refusals,
    torn_refusal,
)
from torchmove.surveying.inventory import Inventory, RememberedDevice, StateTensors
from torchmove.surveying.paths import ATTRIBUTE, CELL, ITEM, KEY, Path

FreeBytes = Callable[[torch.device], int | None]


class Back(NamedTuple):
    """The original placement, for a move back to it: the device of each tensor, and the remembered devices."""

    placement: Sequence[torch.device]
    repoints: Sequence[Repoint]


def make_plan(
    inventory: Inventory,
    target: torch.device,
    *,
    keep: Keep,
    free_bytes: FreeBytes,
    fresh: bool = False,
    back: Back | None = None,
    rests: bool = False,
) -> Plan:
    """Plan the move of an inventory to a target.

    `fresh`: copy to new storages even what is on the target already. `rests`: nothing will compute with the state
    there.
    """
    places = TensorPlaces(inventory, target, keep)
    placement = places.all() if back is None else back.placement
    moves, refusals = _moves(inventory, placement, fresh)
    rooms = tuple(_rooms(moves, inventory.tensors, free_bytes))
    course = Course(target, moves, fresh, rests)
    repoints, stuck = _repoints(inventory, keep, moves, target) if back is None else (back.repoints, [])
    notes = [*notes_of(inventory, keep, course, stuck)]
    refusals += refusals_of(inventory, keep, course)
    refusals += mps_refusals(inventory.tensors, moves) if target.type == "mps" else ()
    refusals += room_refusals(rooms)
    refusals += keep_refusals(inventory, keep)
    refusals += [FAKES] if moves and makes_fakes() else []
    if moves and not has_storage(target.type):
        refusals += mixed_dtype_refusals(inventory.tensors, moves)
        refusals += sub_byte_refusals(inventory.tensors, moves)
        notes.append(no_storages_note(target))
    homes = {home for home, _ in moves.ways}
    notes += [no_storages_note(home) for home in homes if not has_storage(home.type)]
    return Plan(
        inventory=inventory,
        target=target,
        moves=moves,
        reasons=places.why if back is None else {},
        repoints=tuple(repoints),
        refusals=tuple(refusals),
        notes=(*notes, *places.native.notes(), *shared_memory_notes(inventory.tensors, moves)),
        rooms=rooms,
        placement=placement,
    )


def _moves(inventory: Inventory, placement: Sequence[torch.device], fresh: bool) -> tuple[Moves, list[Refusal]]:
    storages = inventory.storages
    firsts: Sequence[int] = storages.firsts
    if not fresh:
        leaves = list(map(ne, placement, storages.metadata.devices))
        firsts = [first for first in firsts if leaves[first]]
    torn = {
        storage.indices[0]: storage
        for storage in storages.shared()
        if len({placement[index] for index in storage.indices}) > 1
    }
    if torn:
        firsts = [first for first in firsts if first not in torn]
    return Moves(storages, firsts, placement), [
        torn_refusal(inventory.tensors, storage, placement) for storage in torn.values()
    ]


def _rooms(moves: Moves, entries: StateTensors, free_bytes: FreeBytes) -> Iterator[MemoryNeed]:
    nbytes = list(moves.nbytes)
    for index, storage in moves.special():
        nbytes[index] = entries.metadata.nbytes[storage.indices[0]] if storage.opaque else packed(storage.spans)[1]
    needs: defaultdict[torch.device, int] = defaultdict(int)
    for (_, target), indices in moves.ways.items():
        needs[target] += sum([nbytes[index] for index in indices])
    for device, size in needs.items():
        yield MemoryNeed(device, size, free_bytes(device))


_Stuck = tuple[str, Path, str]  # a code, a path, and the text of the note


def _repoints(
    inventory: Inventory, keep: Keep, moves: Moves, target: torch.device
) -> tuple[list[Repoint], list[_Stuck]]:
    if not inventory.device_values:
        return [], []
    values = [value for value in inventory.device_values if not keep.has(value.holder, (value.path,))]
    homes = _left_homes(inventory, values, moves, target)
    repoints, stuck = [], []
    for value in values:
        if not any(is_same_device(value.device, home) for home in homes):
            continue
        if _can_be_set(value, target):
            repoints.append(Repoint(value, _like(value, target)))
        else:
            stuck.append(("N040", value.path, f"remembers {value.value!s} in an object that cannot be changed"))
    return repoints, stuck


def _left_homes(
    inventory: Inventory, values: Sequence[RememberedDevice], moves: Moves, target: torch.device
) -> set[torch.device]:
    """The devices that something leaves for the target.

    A state without tensors, such as a metric that was never updated, is on the device that it remembers, if that is
    one.
    """
    if inventory.tensors or inventory.composites:
        return {home for home, place in moves.ways if place == target != home}
    remembered = {value.device for value in values if value.device.type != "meta"}
    one = next(iter(remembered), target)
    is_elsewhere = all(is_same_device(one, each) for each in remembered) and not is_same_device(one, target)
    return {one} if is_elsewhere else set()


def _can_be_set(value: RememberedDevice, target: torch.device) -> bool:
    if value.how is KEY:
        return target not in value.holder  # the dict already has an entry for that device
    if value.how is ITEM:
        return isinstance(value.holder, (dict, list, deque))
    return value.how in (ATTRIBUTE, CELL) and not isinstance(value.holder, (tuple, set, frozenset))


def _like(value: RememberedDevice, target: torch.device) -> torch.device | str | int:
    """The new value for a remembered device, in the form of the old one: a device, a name or an index.

    A name gets an index only if it had one or needs one.
    """
    if isinstance(value.value, torch.device):
        return target
    if isinstance(value.value, int) and value.device.type == target.type:
        return target.index
    bare = torch.device(target.type)
    indexed = isinstance(value.value, int) or ":" in value.value
    return str(target) if indexed or not is_same_device(bare, target) else target.type
