"""Park, wake and swap: move a state off its devices, and back to its original placement; two states in turn."""

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

from torchmove.chain import agree_on, apply_all, move_named, plan_for, plan_sharded, verify_applied
from torchmove.devices import driver_free_memory, free_memory, release_cached_memory, resolve_device
from torchmove.errors import TorchmoveError
from torchmove.formatting import listed, readable_bytes
from torchmove.internals.guards import plain_torch, without_collector
from torchmove.moving.apply import Job
from torchmove.moving.leftovers import wait_for_freeing
from torchmove.moving.receipt import Receipt
from torchmove.parking.arena_movers import IntoArena, OutOfArena
from torchmove.parking.host_copies import host_copies
from torchmove.planning.graph_holders import with_graph_holders
from torchmove.planning.placement import TensorPlaces, keep_of
from torchmove.planning.plan import Note, Plan, Refusal, Repoint
from torchmove.planning.planner import Back, make_plan
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory, StateTensors
from torchmove.surveying.paths import given
from torchmove.surveying.survey import survey_objects
from torchmove.wrong_calls import answers_wrong_calls


@dataclass(frozen=True)
class OriginalPlacement:
    """Where a state was before it was parked: each tensor's device (None if not parked), and the remembered devices."""

    tensors: Mapping[int, tuple[weakref.ref[Tensor], torch.device | None]]
    repoints: tuple[Repoint, ...]
    main: torch.device | None  # the device of most bytes
    keep: Sequence[Any]  # as passed to tm.park

    def of(self, tensor: Tensor) -> tuple[bool, torch.device | None]:
        """Whether the tensor was in the state, and the device it goes back to."""
        found = self.tensors.get(id(tensor))
        return (True, found[1]) if found is not None and found[0]() is tensor else (False, None)


def _original_placement_of(plan: Plan, keep: Sequence[Any] = ()) -> OriginalPlacement:
    entries = plan.inventory.tensors
    devices: list[torch.device | None] = [None] * len(entries)
    for index in plan.moves.indices():
        devices[index] = entries.metadata.devices[index]
    known = dict(
        zip(map(id, entries.objects), zip(map(weakref.ref, entries.objects), devices, strict=True), strict=True)
    )
    weight: Counter[torch.device] = Counter()
    for (origin, _), indices in plan.moves.ways.items():
        weight[origin] += sum(plan.moves.nbytes[index] for index in indices)
    main = weight.most_common(1)[0][0] if weight else None
    return OriginalPlacement(known, plan.repoints, main, keep)


def _placement_back(inventory: Inventory, original: OriginalPlacement) -> list[torch.device]:
    """The original placement. A tensor added since goes where a move would put it, a gradient to its parameter."""
    entries = inventory.tensors
    placement = list(entries.metadata.devices)
    new: list[int] = []
    for index, tensor in enumerate(entries.objects):
        was_there, origin = original.of(tensor)
        if not was_there:
            new.append(index)
        elif origin is not None:
            placement[index] = origin
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
    """The index of the parameter that a gradient or an optimizer's state belongs to."""
    owner = entries[index].owner
    return None if owner is None or owner.parameter is None else inventory.number.get(owner.parameter)


def _repoints_back(original: OriginalPlacement) -> list[Repoint]:
    """The remembered devices as they were before."""
    return [Repoint(value._replace(value=new), value.value) for value, new in original.repoints]


_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False, repr=False)
class Parked(Result):
    """A parked state: what was freed and what was copied. `wake()` brings everything back to where it was.

    Attributes:
        receipt: the receipt of the move to the host.
        freed: bytes freed on each device, measured.
        copied_bytes: bytes copied to the host.
        unchanged_bytes: bytes not copied, since their host copy was current.
        ordinary_bytes: bytes in ordinary (pageable) memory instead of pinned memory.
        notes: each with `code`, `path` and `why`.
    """

    receipt: Receipt
    freed: dict[torch.device, int]
    copied_bytes: int
    unchanged_bytes: int
    ordinary_bytes: int
    notes: tuple[Note, ...]
    original: OriginalPlacement = field(compare=False)
    objects: dict[str, Any] = field(compare=False)
    _awake: list[Receipt] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        """Bytes freed on all devices, as their drivers report: other processes can use them."""
        return sum(self.freed.values())

    @property
    def is_parked(self) -> bool:
        """True until it is woken."""
        return not self._awake

    def wake(self, *, progress: bool = True) -> Receipt:
        """Bring everything back to where it was: all of it, or nothing, and then it is still parked.

        Args:
            progress: as for `tm.move`.

        Returns:
            The receipt of the move back. A second call does nothing and returns the same receipt.

        Raises:
            MoveRefused: a device has too little free memory now.
        """
        if self._awake:
            return self._awake[0]
        began = time.perf_counter()
        plan = _waking_plan(self)
        agreement = agree_on("wake", plan)
        out_of_arena = OutOfArena(plan.inventory)
        job = Job(plan, out_of_arena, "woken", verify_applied)
        self.mark_woken(apply_all(job, began=began, progress=progress, agreement=agreement)[0], out_of_arena)
        return self._awake[0]

    def mark_woken(self, receipt: Receipt, out_of_arena: OutOfArena) -> None:
        out_of_arena.remember()
        self._awake.append(receipt)


# ---------------------------------------------------------------- park


@answers_wrong_calls()
def park(*objects: Any, keep: Sequence[Any] = (), host_bytes: int | None = None, progress: bool = True) -> Parked:
    """Move a state to the host, return its device memory to the driver, and remember its placement.

    While the state is parked, its tensors are on the CPU and can be read, saved and even trained there. For CUDA
    devices the host memory is pinned, and it is kept: the next park copies only what changed.

    Args:
        *objects: as for `tm.move`.
        keep: as for `tm.move`.
        host_bytes: limit for pinned memory. Tensors that do not fit go to ordinary memory, which is slower.
        progress: as for `tm.move`.

    Returns:
        The parked state. Its `wake()` brings all of it back to where it was.

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
    return _park_named(given(objects), keep, host_bytes, progress)


class parked:  # noqa: N801  # used as a function: `with tm.parked(model):`
    """Park a state during a `with` block, and wake it at the end, also after an exception.

    If it cannot be woken (for lack of memory), the error that leaves the block has the parked state as `error.parked`.

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

    @answers_wrong_calls()
    def __init__(
        self, *objects: Any, keep: Sequence[Any] = (), host_bytes: int | None = None, progress: bool = True
    ) -> None:
        self._named, self._options = given(objects), (keep, host_bytes, progress)
        self._parked: Parked | None = None

    def __enter__(self) -> Parked:
        if self._parked is not None:
            raise RuntimeError("this object is already used by a `with` block. Fix: call tm.parked(...) for each block")
        self._parked = _park_named(self._named, *self._options)
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
            # The user's own exception takes precedence; either way `error.parked` can still be woken.
            raised = error if error is not None and isinstance(refused, TorchmoveError) else refused
            raised.parked = left  # type: ignore[attr-defined]
            if raised is refused:
                raise
            warnings.warn(f"the state is still parked: {refused}. Fix: error.parked.wake()", stacklevel=2)


def _park_named(objects: dict[str, Any], keep: Sequence[Any], host_bytes: int | None, progress: bool) -> Parked:
    began = time.perf_counter()
    job, into_arena = _parking_job(objects, keep, host_bytes)
    agreement = agree_on("park", job.plan)
    original, before = _original_placement_of(job.plan, keep), _free_now(job.plan)
    receipt = apply_all(job, began=began, progress=progress, agreement=agreement)[0]
    return _parked_from(receipt, into_arena, objects, original, before, began)


def _parking_job(objects: dict[str, Any], keep: Sequence[Any], host_bytes: int | None) -> tuple[Job, IntoArena]:
    if host_bytes is not None and (not isinstance(host_bytes, int) or host_bytes < 0):
        raise ValueError(f"host_bytes must be a number of bytes, not {host_bytes!r}")
    wait_for_freeing()
    plan = with_graph_holders(plan_sharded(objects, _CPU, keep, _free_with_arena, rests=True))
    if plan.refusals and _fits_with_kept_memory(plan):
        plan = replace(plan, refusals=tuple(each for each in plan.refusals if each.code != "R042"))
    into_arena = IntoArena(plan.inventory, host_bytes=host_bytes)
    return Job(plan, into_arena, "parked", verify_applied), into_arena


def _free_with_arena(device: torch.device) -> int | None:
    free = free_memory(device)
    with host_copies.guard:
        return free + host_copies.free_bytes() if free is not None and device.type == "cpu" else free


def _fits_with_kept_memory(plan: Plan) -> bool:
    """Whether the state fits, counting the host memory that is kept for it."""
    tensors = [plan.inventory.tensors.objects[first] for first in plan.moves.firsts]
    with host_copies.guard:
        kept = host_copies.kept_bytes(tensors)
    return all(room.has_bytes is None or room.needs_bytes <= room.has_bytes + kept for room in plan.rooms)


def _free_now(plan: Plan) -> dict[torch.device, int | None]:
    """Bytes that the driver reports as free on each device that is vacated."""
    return {origin: driver_free_memory(origin) for origin in sorted({origin for origin, _ in plan.moves.ways}, key=str)}


def _parked_from(
    receipt: Receipt,
    into_arena: IntoArena,
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
    if into_arena.ordinary_bytes and into_arena.why:
        size = readable_bytes(into_arena.ordinary_bytes)
        why = f"{size} in ordinary (pageable) memory, which is slower: {into_arena.why}"
        notes.append(Note("N050", listed([*objects]), why))
    return Parked(
        receipt=replace(receipt, seconds=time.perf_counter() - began),
        freed=freed,
        copied_bytes=into_arena.copied_bytes,
        unchanged_bytes=into_arena.unchanged_bytes,
        ordinary_bytes=into_arena.ordinary_bytes,
        notes=tuple(notes),
        original=original,
        objects=objects,
    )


# ---------------------------------------------------------------- wake


@plain_torch
@without_collector
def _waking_plan(parked: Parked) -> Plan:
    wait_for_freeing()
    inventory = survey_objects(parked.objects)
    target, keep = parked.original.main or _CPU, keep_of(parked.objects, ())
    back = Back(_placement_back(inventory, parked.original), _repoints_back(parked.original))
    plan = make_plan(inventory, target, keep=keep, free_bytes=free_memory, back=back)
    return replace(plan, refusals=tuple(map(_still_parked, plan.refusals)))


def _still_parked(refusal: Refusal) -> Refusal:
    if refusal.code != "R042":
        return refusal
    return refusal._replace(remedy="free memory on this device and call parked.wake() again; the state is still parked")


# ---------------------------------------------------------------- swap


@dataclass(frozen=True, eq=False, repr=False)
class Swap(Result):
    """The state that was parked, and the receipt of the state that came.

    Attributes:
        parked: the state that left.
        receipt: the receipt of the state that came.
        at_once: the device had memory for both, so they were copied at the same time.
    """

    parked: Parked
    receipt: Receipt
    at_once: bool


def swap(*, out: Any, into: Any, host_bytes: int | None = None, progress: bool = True) -> Swap:
    """Park one state and bring another one to its device: both, or neither.

    If the device has memory for both, they are copied at the same time.

    Args:
        out: the object that leaves, or a list or tuple of objects.
        into: what `tm.park` returned, which goes back to where it was; or objects on the CPU, which go where `out` was.
        host_bytes: as for `tm.park`.
        progress: as for `tm.move`.

    Returns:
        The parked state, and the receipt of the state that came.

    Raises:
        ValueError: `out` and `into` have an object or a tensor in common.
        MoveRefused: as for `tm.move`, for either state. Neither has moved.
        MoveFailed: as for `tm.move`, for either state. Neither has moved.

    Examples:
        >>> import torch, torchmove as tm
        >>> policy, reward = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
        >>> swapped = tm.swap(out=policy, into=reward)
        >>> swapped.parked.is_parked
        True
    """
    leaving, began = given(_as_tuple(out)), time.perf_counter()
    coming = into if isinstance(into, Parked) else given(_as_tuple(into))
    arriving = coming.objects if isinstance(coming, Parked) else coming
    if {id(each) for each in leaving.values()} & {id(each) for each in arriving.values()}:
        raise ValueError("out= and into= have an object in common. Fix: pass each object to only one of them")
    leaving_job, into_arena = _parking_job(leaving, (), host_bytes)
    agreement = agree_on("swap out", leaving_job.plan)
    original, before = _original_placement_of(leaving_job.plan), _free_now(leaving_job.plan)
    plan = _plan_of(coming, original)
    both = [tensor for tensor in plan.inventory.number if tensor in leaving_job.plan.inventory.number]
    if both:
        path = plan.inventory.tensors[plan.inventory.number[both[0]]].path
        raise ValueError(f"out= and into= both hold {path}. Fix: pass objects that share no tensors")
    at_once = not plan.refusals
    if not at_once and not _is_refused_anyway(plan, leaving_job.plan):
        plan = replace(plan, refusals=())  # there will be enough memory when the other has left
    agreement = agree_on(f"swap in, {'at once' if at_once else 'in turn'},", plan, agreement)
    if not at_once:
        return _one_by_one(leaving, coming, host_bytes, progress)
    out_of_arena = OutOfArena(plan.inventory)
    coming_job = Job(plan, out_of_arena, "swapped", verify_applied)
    # The leaving state goes first: it waits for all work on the device, which would include the other's copies.
    left, came = apply_all(leaving_job, coming_job, began=began, progress=progress, agreement=agreement)
    if isinstance(coming, Parked):
        coming.mark_woken(came, out_of_arena)
    return Swap(_parked_from(left, into_arena, leaving, original, before, began), came, at_once=True)


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _plan_of(coming: Parked | dict[str, Any], original: OriginalPlacement) -> Plan:
    if isinstance(coming, Parked):
        return _waking_plan(coming)
    target = original.main or resolve_device("auto")
    return plan_for(coming, target, (), free_memory)


def _is_refused_anyway(coming: Plan, leaving: Plan) -> bool:
    """Whether the arriving state would be refused even after the other has left."""
    if any(refusal.code != "R042" for refusal in coming.refusals):
        return True
    leaves = {
        origin: sum(leaving.moves.nbytes[index] for index in each) for (origin, _), each in leaving.moves.ways.items()
    }
    return any(
        room.has_bytes is not None and room.needs_bytes > room.has_bytes + leaves.get(room.device, 0)
        for room in coming.rooms
    )


def _one_by_one(
    leaving: dict[str, Any], coming: Parked | dict[str, Any], host_bytes: int | None, progress: bool
) -> Swap:
    """Park one state, then move the other; if that fails, wake the first again."""
    parked = _park_named(leaving, (), host_bytes, progress)
    try:
        if isinstance(coming, Parked):
            receipt = coming.wake(progress=progress)
        else:
            target = parked.original.main or resolve_device("auto")
            receipt = move_named(coming, target, progress=progress)
    except BaseException:
        parked.wake(progress=progress)
        raise
    return Swap(parked, receipt, at_once=False)
