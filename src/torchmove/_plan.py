"""What would happen? Blocks become moves, or stay with a reason; every obstacle becomes a refusal. Pure: no device
is touched and nothing is changed. What a device has free is told to it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

import torch

from torchmove import _devices, _diagnostics, _paths
from torchmove._places import Keep, Places
from torchmove._records import (
    Block,
    DeviceValue,
    Inventory,
    Moves,
    Note,
    Plan,
    Refusal,
    Repoint,
    Room,
    Slots,
)
from torchmove._storage import SUB_BYTE, has_storage, in_shared_memory, makes_fakes, packed
from torchmove.report import counted, readable_bytes

__all__ = ["FAKES", "Back", "FreeBytes", "Keep", "Places", "plan"]

FreeBytes = Callable[[torch.device], int | None]


class Back(NamedTuple):
    """Where everything was, if that is where it shall go: each slot's device, and the remembered devices."""

    placement: Sequence[torch.device]
    repoints: Sequence[Repoint]


FAKES = Refusal("R014", "FakeTensorMode", "it is on: copies would be fakes without bytes", "move outside of its block")
_NOT_ON_MPS = {torch.float64, torch.complex128}


def plan(
    inventory: Inventory,
    target: torch.device,
    *,
    keep: Keep,
    free_bytes: FreeBytes,
    fresh: bool = False,
    back: Back | None = None,
    rests: bool = False,
) -> Plan:
    """Plan the move of an inventory to a target. `fresh`: onto new storages even where it is there already. `rests`:
    nothing will compute with it there."""
    places = Places(inventory, target, keep)
    placement = places.all() if back is None else back.placement
    moves, refusals = _moves(inventory, placement, fresh)
    rooms = tuple(_rooms(moves, inventory.slots, free_bytes))
    course = _diagnostics.Course(target, moves, fresh, rests)
    repoints, stuck = _repoints(inventory, keep, moves, target) if back is None else (back.repoints, [])
    notes = [*_diagnostics.notes(inventory, keep, course, stuck)]
    refusals += _diagnostics.refusals(inventory, keep, course)
    refusals += _mps_refusals(inventory.slots, moves) if target.type == "mps" else ()
    refusals += _room_refusals(rooms)
    refusals += _keep_refusals(inventory, keep)
    refusals += [FAKES] if moves and makes_fakes() else []
    if moves and not has_storage(target.type):
        refusals += _mixed_refusals(inventory.slots, moves)
        refusals += _sub_byte_refusals(inventory.slots, moves)
        notes.append(_no_storages(target))
    homes = {home for home, _ in moves.ways}
    notes += [_no_storages(home) for home in homes if not has_storage(home.type)]
    return Plan(
        inventory=inventory,
        target=target,
        moves=moves,
        reasons=places.why if back is None else {},
        repoints=tuple(repoints),
        refusals=tuple(refusals),
        notes=(*notes, *places.native.notes(), *_shared_notes(inventory.slots, moves)),
        rooms=rooms,
        placement=placement,
    )


def _moves(inventory: Inventory, placement: Sequence[torch.device], fresh: bool) -> tuple[Moves, list[Refusal]]:
    blocks = inventory.blocks
    firsts: Sequence[int] = blocks.firsts
    if not fresh:
        leaves = list(map(ne, placement, blocks.looks.devices))
        firsts = [first for first in firsts if leaves[first]]
    torn = {block.slots[0]: block for block in blocks.shared() if len({placement[index] for index in block.slots}) > 1}
    if torn:
        firsts = [first for first in firsts if first not in torn]
    return Moves(blocks, firsts, placement), [_torn(inventory.slots, block, placement) for block in torn.values()]


def _torn(slots: Slots, block: Block, placement: Sequence[torch.device]) -> Refusal:
    first = block.slots[0]
    other = next(index for index in block.slots if placement[index] != placement[first])
    return Refusal(
        "R041",
        str(slots[first].path),
        f"shares memory with {slots[other].path}, but one goes to {placement[first]}, the other to {placement[other]}",
        "keep both or neither, or clone one of them first",
    )


def _rooms(moves: Moves, slots: Slots, free_bytes: FreeBytes) -> Iterator[Room]:
    nbytes = list(moves.nbytes)
    for index, block in moves.special():
        nbytes[index] = slots.looks.nbytes[block.slots[0]] if block.opaque else packed(block.spans)[1]
    needs: defaultdict[torch.device, int] = defaultdict(int)
    for (_, target), indices in moves.ways.items():
        needs[target] += sum([nbytes[index] for index in indices])
    for device, size in needs.items():
        yield Room(device, size, free_bytes(device))


def _room_refusals(rooms: Sequence[Room]) -> Iterator[Refusal]:
    for room in rooms:
        if room.has_bytes is not None and room.has_bytes < room.needs_bytes:
            missing = room.needs_bytes - room.has_bytes
            yield Refusal(
                "R042",
                str(room.device),
                f"not enough memory: needs {readable_bytes(room.needs_bytes)}, has {readable_bytes(room.has_bytes)}",
                f"free {readable_bytes(missing)} there, or keep= that much of the state where it is",
            )


def _mps_refusals(slots: Slots, moves: Moves) -> Iterator[Refusal]:
    for index in moves.slots():
        slot = slots[index]
        if slot.tensor.dtype in _NOT_ON_MPS and moves.placement[index].type == "mps":
            convert = ".to(torch.complex64)" if slot.tensor.dtype.is_complex else ".float()"
            yield Refusal("R040", str(slot.path), f"mps has no {slot.tensor.dtype}", f"convert it first: {convert}")


def _no_storages(device: torch.device) -> Note:
    return Note(
        "N041", str(device), "has no storages: ties are kept there, strides and views are not seen on the way back"
    )


def _shared_notes(slots: Slots, moves: Moves) -> Iterator[Note]:
    # Of other memory than the host's, torch says that it is shared, or not, for reasons of its own.
    on_host = [some for (home, _), some in moves.ways.items() if home.type == "cpu"]
    firsts = [moves.firsts[index] for some in on_host for index in some if moves.nbytes[index]]
    shared = [*compress(firsts, in_shared_memory([slots.tensors[first] for first in firsts]))]
    if shared:
        others = f" and {counted(len(shared) - 1, 'other')}" if len(shared) > 1 else ""
        why = "other processes can see it, and keep what was there; share_memory_() what shall be seen after the move"
        yield Note("N042", f"{slots[shared[0]].path}{others}", f"is in shared memory: {why}")


def _mixed_refusals(slots: Slots, moves: Moves) -> Iterator[Refusal]:
    for index, block in moves.special():
        first, *others = (slots[each] for each in block.slots)
        for other in others:
            if other.tensor.dtype != first.tensor.dtype:
                why = f"shares memory with {first.path} of another dtype, which {moves[index].target.type} cannot"
                yield Refusal("R043", str(other.path), why, "clone one of them first")


def _sub_byte_refusals(slots: Slots, moves: Moves) -> Iterator[Refusal]:
    for index in moves.slots():
        dtype, place = slots.looks.dtypes[index], moves.placement[index]
        if dtype in SUB_BYTE and not has_storage(place.type):
            why = f"is {dtype}, which torch copies to no device without storages, such as {place.type}"
            yield Refusal("R044", str(slots[index].path), why, "view it as torch.uint8 first: .view(torch.uint8)")


def _keep_refusals(inventory: Inventory, keep: Keep) -> Iterator[Refusal]:
    """What is to be kept must be there: a pattern with a slip in it would move what it was meant to hold."""
    if not (keep.patterns or keep.roots):
        return
    remedy = "print(tm.survey(...)) shows the paths"
    here = [slot.path for slot in inventory.slots] + [
        path for paths in inventory.other_paths.values() for path in paths
    ]
    here += [path for _, path in inventory.holders.values()] + [value.path for value in inventory.device_values]
    for pattern, fits in keep.patterns.items():
        if not any(fits(path) for path in here):
            yield Refusal("R011", f"keep={pattern!r}", "no path matches it", remedy)
    known = {*map(id, inventory.slots.tensors)} | {id(shell.tensor) for shell in inventory.shells}
    for name, value in keep.roots.items():
        if id(value) not in known and id(value) not in inventory.holders and not _shares_any(inventory, value):
            yield Refusal("R011", f"keep={name}", "this object is not part of the state", remedy)


def _shares_any(inventory: Inventory, value: Any) -> bool:
    """A list made for the occasion (`keep=[list(encoder.parameters())]`) is no part of the state; what is in it is."""
    inside = value if isinstance(value, (list, tuple, set)) else ()
    return any(id(each) in inventory.number or id(each) in inventory.holders for each in inside)


_Stuck = tuple[str, _paths.Path, str]  # a code, a path, and what there is to say


def _repoints(
    inventory: Inventory, keep: Keep, moves: Moves, target: torch.device
) -> tuple[list[Repoint], list[_Stuck]]:
    if not inventory.device_values:
        return [], []
    values = [value for value in inventory.device_values if not keep.has(value.holder, (value.path,))]
    homes = _left_homes(inventory, values, moves, target)
    repoints, stuck = [], []
    for value in values:
        if not any(_devices.same(value.device, home) for home in homes):
            continue
        if _can_be_set(value, target):
            repoints.append(Repoint(value, _like(value, target)))
        else:
            stuck.append(("N040", value.path, f"remembers {value.value!s} in a place that cannot be changed"))
    return repoints, stuck


def _left_homes(
    inventory: Inventory, values: Sequence[DeviceValue], moves: Moves, target: torch.device
) -> set[torch.device]:
    """The devices that something leaves for the target. A state without tensors (a metric that has counted nothing yet)
    is where it says it is, if it says one thing."""
    if inventory.slots or inventory.shells:
        return {home for home, place in moves.ways if place == target != home}
    said = {value.device for value in values if value.device.type != "meta"}
    one = next(iter(said), target)
    is_elsewhere = all(_devices.same(one, each) for each in said) and not _devices.same(one, target)
    return {one} if is_elsewhere else set()


def _can_be_set(value: DeviceValue, target: torch.device) -> bool:
    if value.how is _paths.KEY:
        return target not in value.holder  # there is an entry for that device already: two cannot be one
    if value.how is _paths.ITEM:
        return isinstance(value.holder, (dict, list, deque))
    return value.how in (_paths.ATTRIBUTE, _paths.CELL) and not isinstance(value.holder, (tuple, set, frozenset))


def _like(value: DeviceValue, target: torch.device) -> torch.device | str | int:
    """A device stays a device, a name a name (without an index, if it had none and none is needed), an index an index
    among the devices of its kind."""
    if isinstance(value.value, torch.device):
        return target
    if isinstance(value.value, int) and value.device.type == target.type:
        return target.index
    bare = torch.device(target.type)
    indexed = isinstance(value.value, int) or ":" in value.value
    return str(target) if indexed or not _devices.same(bare, target) else target.type
