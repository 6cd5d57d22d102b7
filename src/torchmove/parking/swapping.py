"""One state leaves its device while another comes: the link carries both ways at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from torchmove import _apply, _devices, _move
from torchmove._names import given
from torchmove._records import Plan, Receipt
from torchmove.parking.homes import Homes, homes_of
from torchmove.parking.resting import Parked, free_now, has_parked, park_named, parking, waking_plan
from torchmove.parking.up import Up
from torchmove.report import Reported, Sheet


@dataclass(frozen=True, eq=False, repr=False)
class Swap(Reported):
    """What left, with the way back, and the receipt of what came.

    Attributes:
        parked: what left.
        receipt: of what came.
        at_once: there was room for both, and they crossed.
    """

    parked: Parked
    receipt: Receipt
    at_once: bool  # there was room for both

    def sheet(self) -> Sheet:
        how = "at the same time" if self.at_once else "one after the other: there was no room for both"
        return Sheet(f"swapped {how}", (self.parked.sheet().title, self.receipt.sheet().title))

    def facts(self) -> dict[str, Any]:
        return {"at_once": self.at_once, "parked": self.parked.facts(), "receipt": self.receipt.facts()}


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
    council = _move.agreed("swap out", down_job.plan)
    homes, before = homes_of(down_job.plan), free_now(down_job.plan)
    plan = _plan_of(coming, homes)
    both = [tensor for tensor in plan.inventory.number if tensor in down_job.plan.inventory.number]
    if both:
        path = plan.inventory.slots[plan.inventory.number[both[0]]].path
        raise ValueError(f"out and into both hold {path}: it cannot leave and come at the same time")
    at_once = not plan.refusals
    if not at_once and not _is_hindered(plan, down_job.plan):
        plan = replace(plan, refusals=())  # there will be room when the other is gone
    council = _move.agreed(f"swap in, {'at once' if at_once else 'in turn'},", plan, council)
    if not at_once:
        return _one_by_one(leaving, coming, host_bytes, progress)
    up = Up(plan.inventory)
    up_job = _apply.Job(plan, up, "swapped", _move.proof)
    # The one that leaves goes first: it waits for what is written to it, and would wait for the other too.
    left, came = _move.carried_out(down_job, up_job, began=began, progress=progress, council=council)
    if isinstance(coming, Parked):
        coming.has_woken(came, up)
    return Swap(has_parked(left, down, leaving, homes, before, began), came, at_once=True)


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _plan_of(coming: Parked | dict[str, Any], homes: Homes) -> Plan:
    if isinstance(coming, Parked):
        return waking_plan(coming)
    target = homes.main or _devices.target("auto")
    return _move.plan_for(coming, target, (), _devices.free_bytes)


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
            target = parked.homes.main or _devices.target("auto")
            receipt = _move.move_named(coming, target, progress=progress)
    except BaseException:
        parked.wake(progress=progress)
        raise
    return Swap(parked, receipt, at_once=False)
