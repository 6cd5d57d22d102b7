"""Swap: park one state while another comes to its device, in both directions of the link at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from torchmove.chain import agree_on, apply_all, move_named, plan_for, verify_applied
from torchmove.devices import free_memory, resolve_device
from torchmove.moving.apply import Job
from torchmove.moving.receipt import Receipt
from torchmove.parking.movers import OutOfArena
from torchmove.parking.parked_states import (
    OriginalPlacement,
    Parked,
    free_now,
    original_placement_of,
    park_named,
    parked_from,
    parking_job,
    waking_plan,
)
from torchmove.planning.plan import Plan
from torchmove.results import Result
from torchmove.surveying.names import given


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
    leaving_job, into_arena = parking_job(leaving, (), host_bytes)
    agreement = agree_on("swap out", leaving_job.plan)
    original, before = original_placement_of(leaving_job.plan), free_now(leaving_job.plan)
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
    return Swap(parked_from(left, into_arena, leaving, original, before, began), came, at_once=True)


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _plan_of(coming: Parked | dict[str, Any], original: OriginalPlacement) -> Plan:
    if isinstance(coming, Parked):
        return waking_plan(coming)
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
    parked = park_named(leaving, (), host_bytes, progress)
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
