"""States on many ranks: `tm.rewrap` moves DistributedDataParallel models, `tm.by_rank` collects the reports of all."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torchmove.chain import Device, move_named
from torchmove.errors import MoveRefused
from torchmove.internals.distributed import remove_autograd_hooks
from torchmove.internals.frames import frame
from torchmove.moving.agreement import Agreement, agreement_among, agreement_of
from torchmove.moving.receipt import Receipt
from torchmove.parking.parked_states import Parked
from torchmove.planning.plan import Plan, Refusal
from torchmove.results import Result
from torchmove.surveying.paths import names_of

# ---------------------------------------------------------------- rewrap


def rewrap(model: DistributedDataParallel, *objects: Any, to: Device, progress: bool = True) -> DistributedDataParallel:
    """Move the module inside DistributedDataParallel and wrap it again with the same settings. Call it on every rank.

    Args:
        model: the wrapper. It cannot be used afterwards.
        *objects: the optimizer, and everything else attached to the model.
        to: the device of this rank.
        progress: as for `tm.move`.

    Returns:
        The new wrapper. All ranks have moved.

    Raises:
        TypeError: the model is not a DistributedDataParallel.
        MoveRefused: as for `tm.move`, on any rank; also inside `no_sync()`.
        MoveFailed: as for `tm.move`, on any rank. No rank has moved.

    Examples:
        >>> import torchmove as tm
        >>> model = tm.rewrap(model, optimizer, to="cuda:1")  # doctest: +SKIP
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"tm.rewrap takes a DistributedDataParallel, not {type(model).__name__}. Fix: tm.move(model, to=...)"
        )
    if not model.require_backward_grad_sync:
        why = "gradients are not synchronized inside no_sync(), and the new wrapper would never synchronize them"
        raise MoveRefused([Refusal("R020", "model", why, "call tm.rewrap outside of no_sync()")])
    inside: nn.Module = model.module
    named = {"model.module": inside}
    named |= names_of([each for each in objects if each is not inside], frame(0).f_back)
    agreement = agreement_among(distributed.get_process_group_ranks(model.process_group))
    before = next((parameter.device for parameter in inside.parameters()), torch.device("cpu"))
    receipt = move_named(named, to, progress=progress, agreement=agreement)
    try:
        wrapped = DistributedDataParallel(inside, **_settings(model, receipt.plan.target))
    except Exception:
        move_named(named, before, progress=progress, agreement=agreement)
        raise
    _disable(model)
    for hook, state in getattr(model, "_comm_hooks", ()):
        wrapped.register_comm_hook(state, hook)
    wrapped.training = model.training
    return wrapped


def _settings(model: Any, target: torch.device) -> dict[str, Any]:
    """The wrapper's own arguments, with the new device; without init_sync, since all ranks have the same weights."""
    settings = {name: getattr(model, name) for name in _SETTINGS if hasattr(model, name)}
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    settings["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = (
        model.broadcast_buffers
    )
    settings["bucket_cap_mb"] = model.bucket_bytes_cap / (1 << 20)
    settings["device_ids"] = None if target.type == "cpu" or model.device_ids is None else [target]
    settings["init_sync"] = False
    return settings


_SETTINGS = (
    *("dim", "process_group", "find_unused_parameters"),
    *("gradient_as_bucket_view", "static_graph", "mixed_precision"),
)


def _disable(model: Any) -> None:
    """Disable the old wrapper: it no longer reduces gradients, so the ranks would diverge."""
    remove_autograd_hooks(model)
    model.forward = _forward_of_old_wrapper


def _forward_of_old_wrapper(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "this wrapper was replaced by tm.rewrap and no longer synchronizes gradients. "
        "Fix: model = tm.rewrap(model, ..., to=device)"
    )


# ---------------------------------------------------------------- by_rank


@dataclass(frozen=True, eq=False, repr=False)
class ByRank(Result):
    """The reports of all ranks, the slowest first.

    Attributes:
        rows: a dict for each rank: rank, tensors, nbytes, seconds, gb_per_second, mover, held_bytes.
    """

    rows: tuple[dict[str, Any], ...]


COLUMNS = ("rank", "tensors", "nbytes", "seconds", "gb_per_second", "mover", "held_bytes")


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
