"""One state leaves its device while another comes: the link carries both ways at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from torchmove.chain import agree_on, apply_all, move_named, plan_for, verify_applied
from torchmove.devices import free_memory, resolve_device
from torchmove.moving.apply import Job
from torchmove.moving.receipt import Receipt
from torchmove.parking.movers import OutOfArena
from torchmove.parking.park import (
    OriginalPlacement,
    Parked,
    free_now,
    has_parked,
    original_placement_of,
    park_named,
    parking,
    waking_plan,
)
from torchmove.planning.plan import Plan
from torchmove.results import Result
from torchmove.surveying.names import given


@dataclass(frozen=True, eq=False, repr=False)
class Swap(Result):
    """What left, with the way back, and the receipt of what came.

    Attributes:
        parked: what left.
        receipt: of what came.
        at_once: there was room for both, and they crossed.
    """

    parked: Parked
    receipt: Receipt
    at_once: bool  # there was room for both


def swap(*, out: Any, into: Any, host_bytes: int | None = None, progress: bool = True) -> Swap:
    """Park one state and bring another to its place, both or neither.

    Where the device has room for both they cross on the way.

    Args:
        out: the object that leaves, or a list or tuple of them.
        into: what `tm.park` returned, which goes back where it was; or objects on the CPU, which go where `out` was.
        host_bytes: as for `tm.park`.
        progress: as for `tm.move`.

    Returns:
        What left, with the way back, and the receipt of what came.

    Raises:
        ValueError: something cannot leave and come at the same time.
        MoveRefused: as for `tm.move`, for either. Neither has moved.
        MoveFailed: as for `tm.move`, for either. Neither has moved.

    Examples:
        >>> import torch, torchmove as tm
        >>> policy, reward = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
        >>> swapped = tm.swap(out=policy, into=reward)
        >>> swapped.parked.is_parked
        True
    """
    leaving, began = given(_several(out)), time.perf_counter()
    coming = into if isinstance(into, Parked) else given(_several(into))
    arriving = coming.objects if isinstance(coming, Parked) else coming
    if {id(each) for each in leaving.values()} & {id(each) for each in arriving.values()}:
        raise ValueError("out and into have an object in common: it cannot leave and come at the same time")
    down_job, down = parking(leaving, (), host_bytes)
    council = agree_on("swap out", down_job.plan)
    original, before = original_placement_of(down_job.plan), free_now(down_job.plan)
    plan = _plan_of(coming, original)
    both = [tensor for tensor in plan.inventory.number if tensor in down_job.plan.inventory.number]
    if both:
        path = plan.inventory.tensors[plan.inventory.number[both[0]]].path
        raise ValueError(f"out and into both hold {path}: it cannot leave and come at the same time")
    at_once = not plan.refusals
    if not at_once and not _is_hindered(plan, down_job.plan):
        plan = replace(plan, refusals=())  # there will be room when the other is gone
    council = agree_on(f"swap in, {'at once' if at_once else 'in turn'},", plan, council)
    if not at_once:
        return _one_by_one(leaving, coming, host_bytes, progress)
    up = OutOfArena(plan.inventory)
    up_job = Job(plan, up, "swapped", verify_applied)
    # The one that leaves goes first: it waits for what is written to it, and would wait for the other too.
    left, came = apply_all(down_job, up_job, began=began, progress=progress, council=council)
    if isinstance(coming, Parked):
        coming.has_woken(came, up)
    return Swap(has_parked(left, down, leaving, original, before, began), came, at_once=True)


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _plan_of(coming: Parked | dict[str, Any], original: OriginalPlacement) -> Plan:
    if isinstance(coming, Parked):
        return waking_plan(coming)
    target = original.main or resolve_device("auto")
    return plan_for(coming, target, (), free_memory)


def _is_hindered(coming: Plan, leaving: Plan) -> bool:
    """Would it not come even if the other were gone?"""
    if any(refusal.code != "R042" for refusal in coming.refusals):
        return True
    leaves = {
        home: sum(leaving.moves.nbytes[index] for index in each) for (home, _), each in leaving.moves.ways.items()
    }
    return any(
        room.has_bytes is not None and room.needs_bytes > room.has_bytes + leaves.get(room.device, 0)
        for room in coming.rooms
    )


def _one_by_one(
    leaving: dict[str, Any], coming: Parked | dict[str, Any], host_bytes: int | None, progress: bool
) -> Swap:
    """First one, then the other; and back with the first, if the other cannot come."""
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
