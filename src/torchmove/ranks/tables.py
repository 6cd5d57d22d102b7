"""`tm.by_rank`: the reports of all ranks in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import distributed

from torchmove.moving.agreement import Agreement, agreement_among, agreement_of
from torchmove.moving.receipt import Receipt
from torchmove.parking.parked_states import Parked
from torchmove.planning.plan import Plan
from torchmove.results import Result


@dataclass(frozen=True, eq=False, repr=False)
class ByRank(Result):
    """The reports of all ranks, the slowest first.

    Attributes:
        rows: a dict for each rank: rank, tensors, bytes, seconds, gb_per_second, mover, held_bytes.
    """

    rows: tuple[dict[str, Any], ...]


COLUMNS = ("rank", "tensors", "bytes", "seconds", "gb_per_second", "mover", "held_bytes")


def by_rank(report: Plan | Receipt | Parked) -> ByRank:
    """Collect the plan, receipt or parked state of every rank in one table. Call it on every rank.

    Args:
        report: this rank's own.

    Returns:
        The table. Without a process group it has one row.

    Raises:
        TypeError: the argument is not a plan, a receipt or a parked state.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> tm.by_rank(tm.move(model, to="auto")).rows[0]["rank"]
        0
    """
    if not isinstance(report, (Plan, Receipt, Parked)):
        raise TypeError(
            f"tm.by_rank takes a Plan, Receipt or Parked, not {type(report).__name__}. Fix: tm.by_rank(receipt)"
        )
    row = _row(report)
    agreement = _agreement(report)
    rows = [row] if agreement is None else agreement.gather(row, "gathering reports")
    return ByRank(tuple(sorted(rows, key=lambda each: (-(each["seconds"] or 0), each["rank"]))))


def _agreement(report: Plan | Receipt | Parked) -> Agreement | None:
    plan = report if isinstance(report, Plan) else _receipt(report).plan
    known = (
        agreement_of(plan.inventory)
        if any(composite.tensor is not None for composite in plan.inventory.composites)
        else None
    )
    if known is not None or not distributed.is_initialized():
        return known
    return agreement_among(range(distributed.get_world_size()))


def _receipt(report: Receipt | Parked) -> Receipt:
    return report.receipt if isinstance(report, Parked) else report


def _row(report: Plan | Receipt | Parked) -> dict[str, Any]:
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    if isinstance(report, Plan):
        rest: Sequence[Any] = (None, None, None, None)
        plan = report
    else:
        receipt = _receipt(report)
        plan, held = receipt.plan, sum(each.nbytes for each in receipt.held)
        rest = (receipt.seconds, receipt.bytes_per_second / 1e9, receipt.mover, held)
    return dict(zip(COLUMNS, (rank, plan.tensors, plan.nbytes, *rest), strict=True))
