"""What was found in a state, as the refusals and notes of a plan: which of it stands in the way of this move, and what
to do about it. What many share is one line, with the first path and a count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torchmove import _devices
from torchmove._paths import Path
from torchmove._places import Keep
from torchmove._records import Inventory, Moves, Note, Refusal, Shell, Told
from torchmove._storage import storage_device


class Course(NamedTuple):
    """A move, as far as it decides what stands in its way."""

    target: torch.device
    moves: Moves
    fresh: bool  # onto new storages even where it is there already
    rests: bool  # nothing computes with it on the target: it is parked there


def refusals(inventory: Inventory, keep: Keep, course: Course) -> Iterator[Refusal]:
    moving = frozenset(course.moves.slots() if inventory.told else ())
    for told in inventory.told:
        path, about, fact = told
        if fact.code[0] == "R" and not keep.has(about, (path,)) and _is_in_the_way(told, inventory, moving, course):
            remedy = fact.remedy
            if issubclass(type(about), DistributedDataParallel):
                remedy = _rewrapping(told, inventory, course.target) or remedy
            yield Refusal(fact.code, str(path), fact.why, remedy)
    yield from () if course.rests else _stranded(inventory, course)


# A graph is in the way only of a tensor that moves.
_GRAPH_CODES = {"R032", "R033"}


def _is_in_the_way(told: Told, inventory: Inventory, moving: frozenset[int], course: Course) -> bool:
    _, about, fact = told
    index = inventory.number.get(id(about))  # a tensor made of others has none
    if fact.code in _GRAPH_CODES and index is not None:
        return index in moving
    if fact.code == "R047":
        return course.fresh or storage_device(about) != course.target
    if fact.device is not None:
        return not course.rests and _is_left(fact.device, course)
    return True


def _is_left(device: torch.device, course: Course) -> bool:
    return any(_devices.same(device, home) for home, place in course.moves.ways if home != place)


def _rewrapping(told: Told, inventory: Inventory, target: torch.device) -> str:
    """The call of `tm.rewrap` that does what was asked for: with the wrapper, and all that was given with it."""
    wrappers = [each for each in inventory.told if issubclass(type(each.about), DistributedDataParallel)]
    around = {_root_of(each.path) for each in wrappers}
    others = [name for name in inventory.roots if name not in around]
    # Of an object that holds the wrapper, what hangs on the model is given by itself.
    mine = {*map(id, told.about.module.parameters())}
    for holder, path in inventory.holders.values():
        if issubclass(type(holder), Optimizer) and path.before is not None and _root_of(path) in around:
            trained = (each for group in holder.param_groups for each in group["params"])
            others += [str(path)] if not mine.isdisjoint(map(id, trained)) else []
    name = str(told.path)
    return f"{name} = tm.rewrap({', '.join([name, *others])}, to={str(target)!r})"


def _root_of(path: Path) -> Any:
    return next(path.steps()).what


# ---------------------------------------------------------------- tensors whose device mesh stays


def _stranded(inventory: Inventory, course: Course) -> Iterator[Refusal]:
    """Distributed tensors on an accelerator that their mesh is not on: nothing there computes with them."""
    for (mesh, place), shells in _away_from_mesh(inventory, course).items():
        if place != "cpu":
            why = f"its device mesh is on {mesh}: on {place} its shards would meet {mesh} tensors and collectives"
            remedy = _REBUILD.format(place=place, shape=tuple(shells[0].tensor.device_mesh.shape))  # type: ignore[attr-defined]
            yield Refusal("R048", _counted([shell.path for shell in shells]), why, remedy)


_REBUILD = (
    "make the mesh there, mesh = init_device_mesh({place!r}, {shape}), and fully_shard (or parallelize_module) a new "
    "model on it; torch.distributed.checkpoint.state_dict's get_state_dict and set_state_dict take its state along"
)


def _away_from_mesh(inventory: Inventory, course: Course) -> dict[tuple[str, str], list[Shell]]:
    """The distributed tensors that move away from where their mesh is, by the kinds of the two devices."""
    found: defaultdict[tuple[str, str], list[Shell]] = defaultdict(list)
    moving = {id(inventory.slots.tensors[index]): index for index in course.moves.slots()} if inventory.shells else {}
    for shell in inventory.shells:
        mesh: Any = getattr(shell.tensor, "device_mesh", None)
        if mesh is not None:
            places = {course.moves.placement[moving[id(part)]].type for part in shell.parts if id(part) in moving}
            for place in places - {mesh.device_type}:
                found[mesh.device_type, place].append(shell)
    return found


# ---------------------------------------------------------------- notes


def notes(inventory: Inventory, keep: Keep, course: Course, others: Iterable[tuple[str, Path, str]]) -> Iterator[Note]:
    """Those of the readers, and `others`: code, path and what there is to say. One for all that say the same."""
    alike: defaultdict[tuple[str, str], list[Path]] = defaultdict(list)
    moving = frozenset(course.moves.slots() if inventory.told else ())
    for code, path, why in others:
        alike[code, why].append(path)
    for path, about, fact in inventory.told:
        stays = fact.code == "N061" and id(about) in inventory.number and inventory.number[id(about)] not in moving
        if fact.code[0] == "N" and not stays and not keep.has(about, (path,)):
            alike[fact.code, fact.why].append(path)
    for (mesh, place), shells in _away_from_mesh(inventory, course).items() if not course.rests else ():
        if place == "cpu":
            why = f"its device mesh is on {mesh}: move it back there before the next forward"
            alike["N048", why] += [shell.path for shell in shells]
    for (code, why), paths in alike.items():
        yield Note(code, _counted(paths), why)


def _counted(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
