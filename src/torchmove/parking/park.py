"""The way back: where everything was, and where what is new belongs."""

from __future__ import annotations

import time
import warnings
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from torchmove.chain import agree_on, apply_all, plan_sharded, verify_applied
from torchmove.devices import driver_free_memory, free_memory, release_cached_memory
from torchmove.errors import TorchmoveError
from torchmove.formatting import listed, readable_bytes
from torchmove.internals.collector import without_collector
from torchmove.internals.modes import plain_torch
from torchmove.moving.apply import Job
from torchmove.moving.leftovers import wait_for_freeing
from torchmove.moving.receipt import Receipt
from torchmove.parking.host_copies import host_copies
from torchmove.parking.movers import IntoArena, OutOfArena
from torchmove.planning.keep import keep_of
from torchmove.planning.placement import TensorPlaces
from torchmove.planning.plan import Note, Plan, Refusal, Repoint
from torchmove.planning.planner import Back, make_plan
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.names import given
from torchmove.surveying.survey import survey_objects
from torchmove.surveying.tensors import StateTensors


@dataclass(frozen=True)
class OriginalPlacement:
    """Where everything was: each tensor's device, None for what was not parked, and the remembered devices."""

    tensors: Mapping[int, tuple[weakref.ref[Tensor], torch.device | None]]
    repoints: tuple[Repoint, ...]
    main: torch.device | None  # where most of it was
    keep: Sequence[Any]  # what was to stay

    def of(self, tensor: Tensor) -> tuple[bool, torch.device | None]:
        """Was it there, and where is it to go?"""
        found = self.tensors.get(id(tensor))
        return (True, found[1]) if found is not None and found[0]() is tensor else (False, None)


def original_placement_of(plan: Plan, keep: Sequence[Any] = ()) -> OriginalPlacement:
    entries = plan.inventory.tensors
    homes: list[torch.device | None] = [None] * len(entries)
    for index in plan.moves.indices():
        homes[index] = entries.metadata.devices[index]
    known = dict(zip(map(id, entries.objects), zip(map(weakref.ref, entries.objects), homes, strict=True), strict=True))
    weight: Counter[torch.device] = Counter()
    for (home, _), indices in plan.moves.ways.items():
        weight[home] += sum(plan.moves.nbytes[index] for index in indices)
    main = weight.most_common(1)[0][0] if weight else None
    return OriginalPlacement(known, plan.repoints, main, keep)


def placement_back(inventory: Inventory, original: OriginalPlacement) -> list[torch.device]:
    """Back where it was. What has come since goes where a move would put it; a gradient to its parameter."""
    entries = inventory.tensors
    placement = list(entries.metadata.devices)
    new: list[int] = []
    for index, tensor in enumerate(entries.objects):
        was_there, home = original.of(tensor)
        if not was_there:
            new.append(index)
        elif home is not None:
            placement[index] = home
    if new and original.main is not None:
        objects = dict(zip(inventory.roots, inventory.objects, strict=True))
        would = TensorPlaces(inventory, original.main, keep_of(objects, original.keep)).all()
        for index in new:
            placement[index] = would[index]
        for index in new:
            beside = _parameter_of(entries, index, inventory)
            if beside is not None and would[index] == original.main:
                placement[index] = placement[beside]
    return placement


def _parameter_of(entries: StateTensors, index: int, inventory: Inventory) -> int | None:
    """The slot of the parameter that a gradient, or an optimizer's state, belongs to."""
    owner = entries[index].owner
    return None if owner is None or owner.parameter is None else inventory.number.get(owner.parameter)


def repoints_back(original: OriginalPlacement) -> list[Repoint]:
    """The remembered devices, as they were."""
    return [Repoint(value._replace(value=new), value.value) for value, new in original.repoints]


_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False, repr=False)
class Parked(Result):
    """What was parked, what that set free, and what had to travel. `wake()` brings everything back where it was.

    Attributes:
        receipt: of the way off the devices.
        freed: bytes that each device got back, measured.
        copied_bytes: what travelled.
        unchanged_bytes: what did not have to, since its host copy was still true.
        ordinary_bytes: what lies in ordinary memory, not in the arena.
        notes: what is worth knowing, each with `code`, `path` and `why`.
    """

    receipt: Receipt
    freed: dict[torch.device, int]  # bytes that each device got back, measured
    copied_bytes: int
    unchanged_bytes: int  # their host copy was still true
    ordinary_bytes: int  # in ordinary memory, not in the arena
    notes: tuple[Note, ...]
    original: OriginalPlacement = field(compare=False)
    objects: dict[str, Any] = field(compare=False)
    _awake: list[Receipt] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        """What the devices got back, as they say themselves: another process can have it."""
        return sum(self.freed.values())

    @property
    def is_parked(self) -> bool:
        """It has not been woken."""
        return not self._awake

    def wake(self, *, progress: bool = True) -> Receipt:
        """Bring everything back where it was: all of it, or nothing, and then it is still parked.

        Args:
            progress: as for `tm.move`.

        Returns:
            The receipt of the way back. A second call does nothing and returns it again.

        Raises:
            MoveRefused: a device has no room for it now.
        """
        if self._awake:
            return self._awake[0]
        began = time.perf_counter()
        plan = waking_plan(self)
        council = agree_on("wake", plan)
        up = OutOfArena(plan.inventory)
        job = Job(plan, up, "woken", verify_applied)
        self.has_woken(apply_all(job, began=began, progress=progress, council=council)[0], up)
        return self._awake[0]

    def has_woken(self, receipt: Receipt, up: OutOfArena) -> None:
        up.remember()
        self._awake.append(receipt)


# ---------------------------------------------------------------- there


def park(*objects: Any, keep: Sequence[Any] = (), host_bytes: int | None = None, progress: bool = True) -> Parked:
    """Take a state off its devices, give their memory back to the driver, and remember the way back.

    While it is parked, its tensors are on the CPU and can be read, saved and even trained there. The host memory is
    page-locked where there is a CUDA device, and kept for the next time: only what changed since travels again.

    Args:
        *objects: as for `tm.move`.
        keep: as for `tm.move`.
        host_bytes: the most page-locked memory that may be had. What does not fit goes to ordinary memory, more slowly.
        progress: as for `tm.move`.

    Returns:
        The parked state. Its `wake()` brings all of it back where it was.

    Raises:
        MoveRefused: as for `tm.move`.
        MoveFailed: as for `tm.move`.
        VerificationError: as for `tm.move`.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> parked = tm.park(model)
        >>> receipt = parked.wake()
        >>> parked.is_parked
        False
    """
    return park_named(given(objects), keep, host_bytes, progress)


class parked:  # noqa: N801  # reads as the block it opens
    """Park a state for the length of a block, and wake it at its end, exceptions or not.

    If it cannot be woken then (there is no room, say), the error that leaves the block has the state as its `parked`.

    Args:
        *objects: as for `tm.park`.
        keep: as for `tm.park`.
        host_bytes: as for `tm.park`.
        progress: as for `tm.park`.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> with tm.parked(model) as parked:
        ...     print(model.weight.device)
        cpu
    """

    def __init__(
        self, *objects: Any, keep: Sequence[Any] = (), host_bytes: int | None = None, progress: bool = True
    ) -> None:
        self._named, self._options = given(objects), (keep, host_bytes, progress)
        self._parked: Parked | None = None

    def __enter__(self) -> Parked:
        if self._parked is not None:
            raise RuntimeError("this block is open already: make another with tm.parked(...)")
        self._parked = park_named(self._named, *self._options)
        return self._parked

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left, self._parked = self._parked, None
        if left is None:
            return
        try:
            left.wake(progress=self._options[2])
        except BaseException as refused:
            # An exception of the user's own goes first; whoever catches what leaves the block can still wake the state.
            raised = error if error is not None and isinstance(refused, TorchmoveError) else refused
            raised.parked = left  # type: ignore[attr-defined]
            if raised is refused:
                raise
            warnings.warn(f"the state could not be woken, error.parked.wake() does it later: {refused}", stacklevel=2)


def park_named(objects: dict[str, Any], keep: Sequence[Any], host_bytes: int | None, progress: bool) -> Parked:
    began = time.perf_counter()
    job, down = parking(objects, keep, host_bytes)
    council = agree_on("park", job.plan)
    original, before = original_placement_of(job.plan, keep), free_now(job.plan)
    receipt = apply_all(job, began=began, progress=progress, council=council)[0]
    return has_parked(receipt, down, objects, original, before, began)


def parking(objects: dict[str, Any], keep: Sequence[Any], host_bytes: int | None) -> tuple[Job, IntoArena]:
    if host_bytes is not None and (not isinstance(host_bytes, int) or host_bytes < 0):
        raise ValueError(f"host_bytes is a number of bytes, not {host_bytes!r}")
    wait_for_freeing()
    plan = plan_sharded(objects, _CPU, keep, _free_with_arena, rests=True)
    if plan.refusals and _has_its_places(plan):
        plan = replace(plan, refusals=tuple(each for each in plan.refusals if each.code != "R042"))
    down = IntoArena(plan.inventory, host_bytes=host_bytes)
    return Job(plan, down, "parked", verify_applied), down


def _free_with_arena(device: torch.device) -> int | None:
    free = free_memory(device)
    with host_copies.guard:
        return free + host_copies.free_bytes() if free is not None and device.type == "cpu" else free


def _has_its_places(plan: Plan) -> bool:
    """Is there room for all of it, with what was kept for it since the last time?"""
    tensors = [plan.inventory.tensors.objects[first] for first in plan.moves.firsts]
    with host_copies.guard:
        kept = host_copies.kept_bytes(tensors)
    return all(room.has_bytes is None or room.needs_bytes <= room.has_bytes + kept for room in plan.rooms)


def free_now(plan: Plan) -> dict[torch.device, int | None]:
    """What the driver has to give on each device that is left."""
    return {home: driver_free_memory(home) for home in sorted({home for home, _ in plan.moves.ways}, key=str)}


def has_parked(
    receipt: Receipt,
    down: IntoArena,
    objects: dict[str, Any],
    original: OriginalPlacement,
    before: Mapping[torch.device, int | None],
    began: float,
) -> Parked:
    freed: dict[torch.device, int] = {}
    for device, was in before.items():
        release_cached_memory(device)
        now = driver_free_memory(device)
        if was is not None and now is not None:
            freed[device] = now - was
    notes = []
    if down.ordinary_bytes and down.why:
        why = f"{readable_bytes(down.ordinary_bytes)} went to ordinary memory, which is slower: {down.why}"
        notes.append(Note("N050", listed([*objects]), why))
    return Parked(
        receipt=replace(receipt, seconds=time.perf_counter() - began),
        freed=freed,
        copied_bytes=down.copied_bytes,
        unchanged_bytes=down.unchanged_bytes,
        ordinary_bytes=down.ordinary_bytes,
        notes=tuple(notes),
        original=original,
        objects=objects,
    )


# ---------------------------------------------------------------- and back


@plain_torch
@without_collector
def waking_plan(parked: Parked) -> Plan:
    wait_for_freeing()
    inventory = survey_objects(parked.objects)
    target, keep = parked.original.main or _CPU, keep_of(parked.objects, ())
    back = Back(placement_back(inventory, parked.original), repoints_back(parked.original))
    plan = make_plan(inventory, target, keep=keep, free_bytes=free_memory, back=back)
    return replace(plan, refusals=tuple(map(_still_parked, plan.refusals)))


def _still_parked(refusal: Refusal) -> Refusal:
    if refusal.code != "R042":
        return refusal
    return refusal._replace(remedy="free some there and wake it again: it is still parked")
