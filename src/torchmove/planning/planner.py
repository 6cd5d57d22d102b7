"""Make a plan: storages move or stay with a reason, and every problem becomes a refusal, with its fix.

Planning changes nothing and uses no device: the free memory of each device is passed in.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torchmove.devices import is_same_device
from torchmove.formatting import readable_bytes
from torchmove.internals.guards import makes_fakes
from torchmove.internals.storages import SUB_BYTE, has_storage, in_shared_memory, packed, storage_device
from torchmove.planning.conversion import UNCONVERTED, Request, conversion_notes, conversions_of
from torchmove.planning.placement import Keep, Targets, TensorPlaces
from torchmove.planning.plan import Conversion, MemoryNeed, Moves, Note, Plan, Refusal, Repoint
from torchmove.surveying.inventory import (
    Composite,
    FoundDiagnostic,
    Inventory,
    RememberedDevice,
    StateStorage,
    StateTensors,
)
from torchmove.surveying.paths import ATTRIBUTE, CELL, ITEM, KEY, Path


class Course(NamedTuple):
    """What decides which diagnostics apply to a move."""

    target: torch.device
    moves: Moves
    fresh: bool  # copies to new storages even what is on the target already
    rests: bool  # the state is parked on the target: nothing computes with it there


def refusals_of(inventory: Inventory, keep: Keep, course: Course) -> Iterator[Refusal]:
    moving = frozenset(course.moves.indices() if inventory.diagnostics else ())
    for found in inventory.diagnostics:
        path, about, diagnostic = found
        if diagnostic.code[0] == "R" and not keep.has(about, (path,)) and _applies(found, inventory, moving, course):
            remedy = diagnostic.remedy
            if issubclass(type(about), DistributedDataParallel):
                remedy = _rewrap_call(found, inventory, course.target) or remedy
            yield Refusal(diagnostic.code, str(path), diagnostic.why, remedy)
    yield from () if course.rests else _mesh_refusals(inventory, course)


# A graph prevents a move only of a tensor that moves.
_GRAPH_CODES = {"R032", "R033"}


def _applies(found: FoundDiagnostic, inventory: Inventory, moving: frozenset[int], course: Course) -> bool:
    _, about, diagnostic = found
    index = inventory.number.get(id(about))  # composite tensors have none
    if diagnostic.code in _GRAPH_CODES and index is not None:
        return index in moving
    if diagnostic.code == "R047":
        return course.fresh or storage_device(about) != course.target
    if diagnostic.device is not None:
        return not course.rests and _is_left(diagnostic.device, course)
    return True


def _is_left(device: torch.device, course: Course) -> bool:
    return any(is_same_device(device, home) for home, place in course.moves.ways if home != place)


def _rewrap_call(found: FoundDiagnostic, inventory: Inventory, target: torch.device) -> str:
    """The call of `tm.rewrap` that does what was requested, with the wrapper and everything that was passed with it."""
    wrappers = [each for each in inventory.diagnostics if issubclass(type(each.subject), DistributedDataParallel)]
    around = {_root_of(each.path) for each in wrappers}
    others = [name for name in inventory.roots if name not in around]
    # If an object holds the wrapper, the optimizers in it are passed by themselves.
    parameters = {*map(id, found.subject.module.parameters())}
    for holder, path in inventory.holders.values():
        if issubclass(type(holder), Optimizer) and path.before is not None and _root_of(path) in around:
            trained = (each for group in holder.param_groups for each in group["params"])
            others += [str(path)] if not parameters.isdisjoint(map(id, trained)) else []
    name = str(found.path)
    return f"{name} = tm.rewrap({', '.join([name, *others])}, to={str(target)!r})"


def _root_of(path: Path) -> Any:
    return next(path.steps()).what


# ---------------------------------------------------------------- device meshes


def _mesh_refusals(inventory: Inventory, course: Course) -> Iterator[Refusal]:
    """Distributed tensors that would move to an accelerator that their mesh is not on."""
    for (mesh, place), composites in _away_from_mesh(inventory, course).items():
        if place != "cpu":
            why = f"its device mesh stays on {mesh}: its shards cannot compute on {place}"
            remedy = _REBUILD.format(place=place, shape=tuple(composites[0].tensor.device_mesh.shape))  # type: ignore[attr-defined]
            yield Refusal("R048", _counted([composite.path for composite in composites]), why, remedy)


_REBUILD = (
    "mesh = init_device_mesh({place!r}, {shape}); fully_shard (or parallelize_module) a new model on it, and load the "
    "state with get_state_dict and set_state_dict of torch.distributed.checkpoint.state_dict"
)


def _away_from_mesh(inventory: Inventory, course: Course) -> dict[tuple[str, str], list[Composite]]:
    """The distributed tensors that leave the device type of their mesh, by the device types of mesh and target."""
    found: defaultdict[tuple[str, str], list[Composite]] = defaultdict(list)
    moving = (
        {id(inventory.tensors.objects[index]): index for index in course.moves.indices()}
        if inventory.composites
        else {}
    )
    for composite in inventory.composites:
        mesh: Any = getattr(composite.tensor, "device_mesh", None)
        if mesh is not None:
            places = {course.moves.placement[moving[id(part)]].type for part in composite.parts if id(part) in moving}
            for place in places - {mesh.device_type}:
                found[mesh.device_type, place].append(composite)
    return found


# ---------------------------------------------------------------- notes


def notes_of(
    inventory: Inventory, keep: Keep, course: Course, others: Iterable[tuple[str, Path, str]]
) -> Iterator[Note]:
    """The notes of the readers and `others` (code, path and text); one for all with the same text."""
    alike: defaultdict[tuple[str, str], list[Path]] = defaultdict(list)
    moving = frozenset(course.moves.indices() if inventory.diagnostics else ())
    for code, path, why in others:
        alike[code, why].append(path)
    for path, about, diagnostic in inventory.diagnostics:
        stays = (
            diagnostic.code == "N061" and id(about) in inventory.number and inventory.number[id(about)] not in moving
        )
        if diagnostic.code[0] == "N" and not stays and not keep.has(about, (path,)):
            alike[diagnostic.code, diagnostic.why].append(path)
    for (mesh, place), composites in _away_from_mesh(inventory, course).items() if not course.rests else ():
        if place == "cpu":
            why = f"its device mesh is on {mesh}: move it back there before the next forward"
            alike["N048", why] += [composite.path for composite in composites]
    for (code, why), paths in alike.items():
        yield Note(code, _counted(paths), why)


def _counted(paths: Sequence[Path]) -> str:
    more = f" ... and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"


FAKES = Refusal(
    "R014",
    "FakeTensorMode",
    "a FakeTensorMode is active: copies have no bytes",
    "move outside of `with FakeTensorMode():`",
)
_NOT_ON_MPS = {torch.float64, torch.complex128}


def torn_refusal(entries: StateTensors, storage: StateStorage, placement: Sequence[torch.device]) -> Refusal:
    first = storage.indices[0]
    other = next(index for index in storage.indices if placement[index] != placement[first])
    where = f"one goes to {placement[first]}, the other to {placement[other]}"
    why = f"shares memory with {entries[other].path}, but {where}"
    return Refusal("R041", str(entries[first].path), why, "keep= both or neither, or clone one of them first")


def room_refusals(rooms: Sequence[MemoryNeed]) -> Iterator[Refusal]:
    for room in rooms:
        if room.has_bytes is not None and room.has_bytes < room.needs_bytes:
            missing = room.needs_bytes - room.has_bytes
            yield Refusal(
                "R042",
                str(room.device),
                f"not enough memory: needs {readable_bytes(room.needs_bytes)}, has {readable_bytes(room.has_bytes)}",
                f"free {readable_bytes(missing)} there, or keep= that much of the state where it is",
            )


def mps_refusals(entries: StateTensors, moves: Moves) -> Iterator[Refusal]:
    on_mps = any(place.type == "mps" for _, place in moves.ways)
    for index in moves.indices() if on_mps else ():
        entry = entries[index]
        if entry.tensor.dtype in _NOT_ON_MPS and moves.placement[index].type == "mps":
            convert = ".to(torch.complex64)" if entry.tensor.dtype.is_complex else ".float()"
            yield Refusal(
                "R040", str(entry.path), f"mps does not support {entry.tensor.dtype}", f"convert it first: {convert}"
            )


def no_storages_note(device: torch.device) -> Note:
    return Note(
        "N041",
        str(device),
        "torch cannot access its storages: tied weights stay tied, strides and views are lost on the way back",
    )


def shared_memory_notes(entries: StateTensors, moves: Moves) -> Iterator[Note]:
    # Only for host memory: for other devices, is_shared does not mean other processes.
    on_host = [some for (home, _), some in moves.ways.items() if home.type == "cpu"]
    firsts = [moves.firsts[index] for some in on_host for index in some if moves.nbytes[index]]
    shared = [*compress(firsts, in_shared_memory([entries.objects[first] for first in firsts]))]
    if shared:
        why = "is in shared memory: other processes keep the old memory; call share_memory_() again after the move"
        yield Note("N042", _counted([entries[first].path for first in shared]), why)


def mixed_dtype_refusals(entries: StateTensors, moves: Moves, place: torch.device) -> Iterator[Refusal]:
    for _, storage in moves.special():
        if moves.placement[storage.indices[0]] != place:
            continue
        first, *others = (entries[each] for each in storage.indices)
        for other in others:
            if other.tensor.dtype != first.tensor.dtype:
                why = f"shares memory with {first.path} of another dtype, which {place.type} does not support"
                yield Refusal("R043", str(other.path), why, "clone one of them first")


def sub_byte_refusals(entries: StateTensors, moves: Moves, place: torch.device) -> Iterator[Refusal]:
    for index in moves.indices():
        dtype = entries.metadata.dtypes[index]
        if dtype in SUB_BYTE and moves.placement[index] == place:
            why = f"is {dtype}, which torch cannot copy to {place.type}, a device without storages"
            yield Refusal("R044", str(entries[index].path), why, "view it as torch.uint8 first: .view(torch.uint8)")


def targets_refusals(inventory: Inventory, targets: Targets, unmatched: Sequence[int]) -> Iterator[Refusal]:
    """Refuse patterns of `to=` that match nothing, and tensors that none of them matches."""
    if unmatched:
        path = _counted([inventory.tensors[index].path for index in unmatched])
        example = ", ".join(f"{name!r}: {str(device)!r}" for name, device in targets.devices.items())
        yield Refusal("R015", path, "no pattern of to= matches it", f"to={{{example}, '*': 'cpu'}}")
    yield from _apart_refusals(inventory, targets)
    # Gradients and optimizer state go with their parameter: no pattern decides about them.
    deciding = [entry for entry in inventory.tensors if entry.owner is None or entry.owner.parameter is None]
    here = [entry.path for entry in deciding]
    here += [path for entry in deciding for path in inventory.other_paths.get(id(entry.tensor), ())]
    here += [path for holder, path in inventory.holders.values() if isinstance(holder, nn.Module)]
    decided = {*map(targets.pattern_of, here)}
    for pattern in targets.devices:
        if pattern not in decided and pattern != "*":
            why = "this pattern of to= decides about no path: none matches it, or an earlier pattern comes first"
            yield Refusal("R011", repr(pattern), why, f"print(tm.survey({', '.join(inventory.roots)})) lists the paths")


def _apart_refusals(inventory: Inventory, targets: Targets) -> Iterator[Refusal]:
    """Refuse to send one tensor to two devices: tied weights, by the paths of each."""
    holders = {id(path): holder for holder, path in inventory.holders.values()}
    for me, paths in inventory.other_paths.items() if len({*targets.devices.values()}) > 1 else ():
        if me not in inventory.number:
            continue
        meant: list[tuple[torch.device, Path]] = []
        for path in (inventory.tensors[inventory.number[me]].path, *paths):
            pattern = None if "param_groups" in path.names() else targets.pattern_of(path)
            # `*` means everything else: for a list that also has the tensor it says nothing, for a module it does.
            if pattern not in (None, "*") or (pattern and issubclass(type(holders.get(id(path.before))), nn.Module)):
                meant.append((targets.devices[str(pattern)], path))
        apart = next((each for each in meant if each[0] != meant[0][0]), None)
        if apart is not None:
            why = f"is also {apart[1]}: one goes to {meant[0][0]}, the other to {apart[0]}"
            yield Refusal("R041", str(meant[0][1]), why, "give both the same device in to=, or untie them first")


def keep_refusals(inventory: Inventory, keep: Keep) -> Iterator[Refusal]:
    """Refuse a `keep=` that matches nothing: with a typo, the move would take what it was meant to leave."""
    if not (keep.patterns or keep.roots):
        return
    remedy = f"print(tm.survey({', '.join(inventory.roots)})) shows the paths"
    here = [entry.path for entry in inventory.tensors] + [
        path for paths in inventory.other_paths.values() for path in paths
    ]
    here += [path for _, path in inventory.holders.values()] + [value.path for value in inventory.device_values]
    for pattern, fits in keep.patterns.items():
        if not any(fits(path) for path in here):
            yield Refusal("R011", f"keep={pattern!r}", "no path matches it", remedy)
    known = {*map(id, inventory.tensors.objects)} | {id(composite.tensor) for composite in inventory.composites}
    for name, value in keep.roots.items():
        if id(value) not in known and id(value) not in inventory.holders and not _shares_any(inventory, value):
            yield Refusal("R011", f"keep={name}", "this object is not part of the state", remedy)


def _shares_any(inventory: Inventory, value: Any) -> bool:
    """Whether a list made for the call (`keep=[list(encoder.parameters())]`) contains anything of the state."""
    inside = value if isinstance(value, (list, tuple, set)) else ()
    return any(id(each) in inventory.number or id(each) in inventory.holders for each in inside)


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
    request: Request = UNCONVERTED,
    targets: Targets | None = None,
) -> Plan:
    """Plan the move of an inventory to a target.

    `fresh`: copy to new storages even what is on the target already. `rests`: nothing will compute with the state
    there. `request`: another dtype or memory format.
    """
    places = TensorPlaces(inventory, target, keep, targets)
    placement = places.all() if back is None else back.placement
    conversions, unconverted = conversions_of(inventory, request, keep)
    moves, refusals = _moves(inventory, placement, fresh, conversions)
    refusals += unconverted
    rooms = tuple(_rooms(moves, inventory.tensors, free_bytes))
    course = Course(target, moves, fresh, rests)
    repoints, stuck = _repoints(inventory, keep, moves, target, targets) if back is None else (back.repoints, [])
    notes = [*notes_of(inventory, keep, course, stuck), *conversion_notes(inventory, conversions)]
    refusals += refusals_of(inventory, keep, course)
    refusals += mps_refusals(inventory.tensors, moves)
    refusals += targets_refusals(inventory, targets, places.unmatched) if targets is not None else ()
    refusals += room_refusals(rooms)
    refusals += keep_refusals(inventory, keep)
    refusals += [FAKES] if moves and makes_fakes() else []
    for place in {place: None for _, place in moves.ways if not has_storage(place.type)}:
        refusals += mixed_dtype_refusals(inventory.tensors, moves, place)
        refusals += sub_byte_refusals(inventory.tensors, moves, place)
        notes.append(no_storages_note(place))
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
        dtype=request.dtype,
        memory_format=request.memory_format,
        devices=(target,) if targets is None else tuple(dict.fromkeys(targets.devices.values())),
    )


def _moves(
    inventory: Inventory, placement: Sequence[torch.device], fresh: bool, conversions: Mapping[int, Conversion]
) -> tuple[Moves, list[Refusal]]:
    storages = inventory.storages
    firsts: Sequence[int] = storages.firsts
    if not fresh:
        leaves = list(map(ne, placement, storages.metadata.devices))
        firsts = [first for first in firsts if leaves[first] or first in conversions]
    torn = {
        storage.indices[0]: storage
        for storage in storages.shared()
        if len({placement[index] for index in storage.indices}) > 1
    }
    if torn:
        firsts = [first for first in firsts if first not in torn]
    return Moves(storages, firsts, placement, conversions), [
        torn_refusal(inventory.tensors, storage, placement) for storage in torn.values()
    ]


def _rooms(moves: Moves, entries: StateTensors, free_bytes: FreeBytes) -> Iterator[MemoryNeed]:
    nbytes = list(moves.nbytes)
    for index, storage in moves.special():
        nbytes[index] = entries.metadata.nbytes[storage.indices[0]] if storage.opaque else packed(storage.spans)[1]
    if moves.conversions:
        before = entries.metadata.dtypes
        for index, first in enumerate(moves.firsts):
            conversion = moves.conversions.get(first)
            if conversion is not None:
                nbytes[index] = nbytes[index] // before[first].itemsize * conversion.dtype.itemsize
    needs: defaultdict[torch.device, int] = defaultdict(int)
    for (_, target), indices in moves.ways.items():
        needs[target] += sum([nbytes[index] for index in indices])
    for device, size in needs.items():
        yield MemoryNeed(device, size, free_bytes(device))


_Stuck = tuple[str, Path, str]  # a code, a path, and the text of the note


def _repoints(
    inventory: Inventory, keep: Keep, moves: Moves, main: torch.device, targets: Targets | None
) -> tuple[list[Repoint], list[_Stuck]]:
    if not inventory.device_values:
        return [], []
    values = [value for value in inventory.device_values if not keep.has(value.holder, (value.path,))]
    homes_of = {place: _left_homes(inventory, values, moves, place) for place in (main, *moves.placement)}
    repoints, stuck = [], []
    for value in values:
        target = main if targets is None else targets.of(value.path) or main
        if not any(is_same_device(value.device, home) for home in homes_of.get(target, ())):
            continue
        if _can_be_set(value, target):
            repoints.append(Repoint(value, _like(value, target)))
        else:
            stuck.append(("N040", value.path, f"stores {value.value!s} in an object that cannot be changed"))
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
