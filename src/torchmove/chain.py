"""The steps of a move: survey, plan, apply and verify, and `move`, which runs all four."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, Literal

import torch

from torchmove.devices import NoSuchDevice, assumed_device, free_memory, resolve_device
from torchmove.errors import MoveRefused, VerificationError
from torchmove.formatting import bytes_of, listed
from torchmove.internals.guards import makes_fakes, plain_torch, without_collector, without_modes
from torchmove.moving.agreement import Agreement, agreement_of
from torchmove.moving.apply import Job, apply_jobs
from torchmove.moving.leftovers import wait_for_freeing
from torchmove.moving.movers import NoSuchMover, choose_mover
from torchmove.moving.receipt import Receipt
from torchmove.planning.conversion import UNCONVERTED, Request, request_of
from torchmove.planning.graph_holders import with_graph_holders
from torchmove.planning.not_given import notes_now, with_notes
from torchmove.planning.placement import KEPT, Targets, keep_of
from torchmove.planning.plan import Plan, Refusal
from torchmove.planning.planner import FAKES, Back, FreeBytes, make_plan
from torchmove.progress import ProgressBar, Stages
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.paths import check, given
from torchmove.surveying.survey import survey_objects
from torchmove.verifying.digests import digests, makes_dense
from torchmove.verifying.verify import Verdict, verify_move, verify_place
from torchmove.wrong_calls import answers_wrong_calls, no_plan

STALE = Refusal(
    "R013",
    "plan",
    "the state has changed since the plan was made: tensors were added, removed, given other storages, or are in use",
    "call tm.plan(...) again, right before tm.apply(plan)",
)


def _assumed(planned: Plan) -> Refusal:
    remedy = f'on a machine that has the device: tm.apply(tm.plan(..., to="{planned.target.type}")), without assume='
    return Refusal("R016", f"to={str(planned.target)!r}", "the plan assumes this device and its memory", remedy)


def is_current(planned: Inventory) -> bool:
    """Whether a fresh survey finds the same tensors on the same storages."""
    now = survey_objects(dict(zip(planned.roots, planned.objects, strict=True)))
    if not planned.tensors.metadata.is_like(now.tensors.metadata) or planned.storages.special != now.storages.special:
        return False
    if _diagnostics_and_devices(planned) != _diagnostics_and_devices(now):
        return False
    made_anew = {*planned.tensors.made_anew()}
    pairs = enumerate(zip(planned.tensors.objects, now.tensors.objects, strict=True))
    return all(was is found or index in made_anew for index, (was, found) in pairs)


def _diagnostics_and_devices(inventory: Inventory) -> list[tuple[object, ...]]:
    """The diagnostics (an autograd graph may be alive now and was not then) and the remembered devices."""
    found: list[tuple[object, ...]] = [(str(path), diagnostic) for path, _, diagnostic in inventory.diagnostics]
    return found + [(id(value.holder), str(value.path), value.value) for value in inventory.device_values]


Device = torch.device | str | int
Thoroughness = Literal["quick", "bytes", "off"]
_Planner = Callable[..., Plan]


@answers_wrong_calls()
def survey(*objects: Any) -> Inventory:
    """List every tensor in the objects: its path, role, device, bytes, and which tensors share storage.

    Args:
        *objects: modules, optimizers, schedulers, scalers, tensors, and anything that holds them.

    Returns:
        The inventory. It prints as a table; `tensors` has a row for each tensor.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> [(str(tensor.path), tensor.role, tensor.nbytes) for tensor in tm.survey(model).tensors]
        [('model.weight', 'parameter', 24), ('model.bias', 'parameter', 12)]
    """
    return survey_objects(given(objects))


@answers_wrong_calls("to", "dtype", "memory_format")
def plan(
    *objects: Any,
    to: Device | Mapping[str, Device] | None = None,
    keep: Sequence[Any] = (),
    verify: Thoroughness = "quick",
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    cast_optimizer: bool = False,
    assume: str | int | None = None,
) -> Plan:
    """Plan a move and report what it would do. Moves nothing.

    Args:
        *objects: as for `tm.move`.
        to: as for `tm.move`.
        keep: as for `tm.move`.
        verify: "bytes" computes digests now and compares them after the plan is applied.
        dtype: as for `tm.move`.
        memory_format: as for `tm.move`.
        cast_optimizer: as for `tm.move`.
        assume: plan for a device that this machine need not have, with this much free memory: "80GB", "80GiB" or a
            number of bytes. The plan cannot be applied.

    Returns:
        The plan: what would move, what stays and why, whether it fits in memory, and what prevents the move. Refusals
        are in the plan, not raised.

    Raises:
        MoveRefused: the device does not exist.
        ValueError: `assume` is not a size.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> plan = tm.plan(model, to="cpu", keep=["model.bias"])
        >>> plan.ok, plan.tensors
        (True, 0)
        >>> tm.plan(torch.nn.Linear(2, 3, device="meta"), to="cpu").refusals[0].code
        'R030'
        >>> str(tm.plan(model, to="cuda", assume="80GB")).splitlines()[0]
        'model: would move to cuda:0 (assumed, with 74.5 GiB free): 2 tensors in 2 storages, 36 B'
    """
    request = request_of(dtype, memory_format, cast_optimizer)
    planned = _planned(given(objects), to, keep, verify, planner=plan_for, request=request, assume=assume)
    return with_notes(planned)


def apply(plan: Plan, *, mover: str = "auto", progress: bool = True) -> Receipt:
    """Carry out a plan: all of it, or nothing.

    Args:
        plan: from `tm.plan`. A plan can be applied once.
        mover: as for `tm.move`.
        progress: as for `tm.move`.

    Returns:
        The receipt.

    Raises:
        MoveRefused: the plan has refusals, or the state has changed since it was planned.
        MoveFailed: as for `tm.move`.
        VerificationError: as for `tm.move`.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> receipt = tm.apply(tm.plan(model, to="auto"))
        >>> receipt.plan.target == model.weight.device
        True
    """
    if not isinstance(plan, Plan):
        raise no_plan(plan)
    if plan.assumed_bytes is not None:
        plan = replace(plan, refusals=(_assumed(plan), *plan.refusals))
    if not plan.refusals and makes_fakes():
        plan = replace(plan, refusals=(FAKES,))
    if not plan.refusals and not is_current(plan.inventory):
        plan = replace(plan, refusals=(STALE,))
    return _applied(plan, mover, "quick" if plan.digests is None else "bytes", progress)


@answers_wrong_calls("on", "after")
def verify(*objects: Any, on: Device | None = None, after: Receipt | None = None, keep: Sequence[Any] = ()) -> Verdict:
    """Verify that a state is on a device, or that it is as a move left it. Changes nothing.

    Args:
        *objects: as for `tm.move`.
        on: verify that everything is on this device, except what an optimizer keeps elsewhere.
        after: verify that everything is as the move of this receipt left it, including the bytes if it moved with
            `verify="bytes"`.
        keep: with `on`, what may be on any device: objects, or path patterns, as for `tm.move`.

    Returns:
        The verdict. `raise_if_bad()` turns findings into an error.

    Raises:
        TypeError: neither or both of `on` and `after` were given, or `keep` with `after`.
        MoveRefused: the device does not exist, or `keep` names something that is not in the state.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> print(tm.verify(model, on="cpu"))
        Verified: 2 tensors checked for placement, orphaned optimizers, remembered devices
    """
    named = given(objects)
    if (on is None) == (after is None):
        raise TypeError('tm.verify takes on= or after=. Fix: tm.verify(model, on="cuda") or after=receipt')
    if after is not None:
        if keep:
            raise TypeError("keep= goes with on=: a receipt knows what the move kept. Fix: leave keep= out")
        if not isinstance(after, Receipt):
            raise TypeError(
                f"after= takes a Receipt, not {type(after).__name__}. Fix: receipt = tm.move(...), then after=receipt"
            )
        now = survey_objects(named)
        return replace(verify_move(now, after.plan), notes=notes_now(now, after.plan.target))
    would = plan_for(named, _target(on, "on"), keep, lambda _: None)
    unknown = [refusal for refusal in would.refusals if refusal.code == "R011"]
    if unknown:
        raise MoveRefused(unknown)
    verdict = verify_place(would.inventory, would, keep_of(named, keep))
    return replace(verdict, notes=notes_now(would.inventory, would.target))


@answers_wrong_calls("to", "dtype", "memory_format")
def move(
    *objects: Any,
    to: Device | Mapping[str, Device] | None = None,
    keep: Sequence[Any] = (),
    verify: Thoroughness = "quick",
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    cast_optimizer: bool = False,
    mover: str = "auto",
    progress: bool = True,
) -> Receipt:
    """Move a training state to a device: all of it or none of it. Surveys, plans, applies and verifies.

    Args:
        *objects: modules, optimizers, schedulers, scalers, tensors, and anything that holds them.
        to: what `torch.device` takes, or "auto": the machine's accelerator, else the CPU. A dict of path patterns sends
            parts to different devices, the first match decides: `{"encoder": "cuda:0", "*": "cpu"}`. With `dtype` or
            `memory_format` it may be left out: then everything stays on its device.
        keep: what stays as it is: objects, or path patterns such as "model.*.table".
        verify: "quick" checks everything but the bytes before the old copy is freed, "bytes" compares the bytes too,
            "off" checks nothing.
        dtype: cast floating-point and complex parameters and buffers to this dtype, and their gradients, as
            `Module.to` does. Everything else keeps its dtype.
        memory_format: the memory format of parameters and buffers with four dimensions (`torch.channels_last`) or five
            (`torch.channels_last_3d`), and of their gradients.
        cast_optimizer: cast floating-point optimizer state of these parameters too, except scalars.
        mover: forces a way of copying: "plain", or "staged" between CPU and CUDA.
        progress: show a progress bar in a terminal or a notebook if the move takes more than a second.

    Returns:
        The receipt: what moved, how fast, what stayed and why, and the verdict.

    Raises:
        MoveRefused: the state cannot move as asked. The error lists every reason.
        MoveFailed: the move failed and was rolled back.
        VerificationError: the result differs from the plan; the move was rolled back. In each case the state is
            unchanged.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> receipt = tm.move(model, optimizer, to="auto")
        >>> tm.verify(model, optimizer, on="auto").ok
        True
        >>> tm.move(model, optimizer, to="nowhere")
        Traceback (most recent call last):
        torchmove.errors.MoveRefused: move refused for 1 reason; nothing was changed:
        ...
    """
    request = request_of(dtype, memory_format, cast_optimizer)
    made = with_notes(_planned(given(objects), to, keep, verify, request=request))
    return _applied(made, mover, verify, progress)


def device(name: Device = "auto") -> torch.device:
    """The device that `to=` stands for, with its index: for batches, and for tensors that are created on it.

    Args:
        name: what `torch.device` takes, or "auto": the machine's accelerator, else the CPU.

    Returns:
        The device.

    Raises:
        MoveRefused: the device does not exist.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> tm.move(model, to="auto").device == tm.device("auto") == model.weight.device
        True
    """
    return _target(name, "name")


def survey_named(objects: dict[str, Any]) -> Inventory:
    """`survey` for objects by name."""
    check(objects.values())
    return survey_objects(objects)


def plan_named(objects: dict[str, Any], to: Device, keep: Sequence[Any], assume: str | int | None = None) -> Plan:
    check(objects.values())
    return _planned(objects, to, keep, "quick", planner=plan_for, assume=assume)


def move_named(
    objects: dict[str, Any],
    to: Device,
    *,
    progress: bool,
    verify: Thoroughness = "quick",
    agreement: Agreement | None = None,
) -> Receipt:
    """`move` for objects by name, among ranks that are known already."""
    return _applied(_planned(objects, to, (), verify), "auto", verify, progress, agreement)


def refresh_named(objects: dict[str, Any], mover: str = "plain") -> Receipt:
    """Give a state new storages on its own device, by the same steps as a move."""
    inventory = survey_objects(objects)
    where = inventory.tensors.metadata.devices[0] if inventory.tensors else torch.device("cpu")
    here = Back(inventory.tensors.metadata.devices, ())
    made = make_plan(inventory, where, keep=keep_of(objects, ()), free_bytes=free_memory, fresh=True, back=here)
    return _applied(made, mover, "quick", progress=False)


# ---------------------------------------------------------------- the steps


def _planned(
    objects: dict[str, Any],
    to: Device | Mapping[str, Device] | None,
    keep: Sequence[Any],
    verify: Thoroughness,
    planner: _Planner | None = None,
    request: Request = UNCONVERTED,
    assume: str | int | None = None,
) -> Plan:
    if verify not in ("quick", "bytes", "off"):
        raise ValueError(f"verify must be 'quick', 'bytes' or 'off', not {verify!r}. Fix: verify='quick'")
    assumed = None if assume is None else bytes_of(assume, "assume=")
    wait_for_freeing()  # free memory is counted next
    if to is None and request:
        made = _planned_on_the_spot(objects, keep, request)
    else:
        resolve = resolve_device if assumed is None else assumed_device
        targets = _targets(to, resolve) if isinstance(to, Mapping) else None
        target = targets.main if targets is not None else _target(to, resolve=resolve)
        free = free_memory if assumed is None else _assumed_memory(assumed, target)
        made = (planner or plan_sharded)(objects, target, keep, free, request=request, targets=targets)
    made = made if assumed is None else replace(made, assumed_bytes=assumed)
    made = with_graph_holders(made)
    if verify == "bytes" and made.ok:
        stages = Stages()
        stages.begin("digests")
        entries, moves = made.inventory.tensors, made.moves
        made = replace(made, digests=digests(entries, repeats=makes_dense(moves), moves=moves))
        made = replace(made, stages=(*made.stages, *stages.end()))
    return made


@plain_torch
@without_collector
def _planned_on_the_spot(objects: dict[str, Any], keep: Sequence[Any], request: Request) -> Plan:
    """A plan that only converts: every tensor stays on its device."""
    inventory = survey_objects(objects)
    devices = inventory.tensors.metadata.devices
    here = Back(devices, ())
    target = devices[0] if devices else torch.device("cpu")
    kept = keep_of(objects, keep)
    made = make_plan(inventory, target, keep=kept, free_bytes=free_memory, back=here, request=request)
    entries = enumerate(inventory.tensors) if keep else ()
    return replace(made, reasons={index: KEPT for index, each in entries if kept.has(each.tensor, [each.path])})


@plain_torch
@without_collector
def plan_for(
    objects: dict[str, Any],
    target: torch.device,
    keep: Sequence[Any],
    free_bytes: FreeBytes,
    *,
    rests: bool = False,
    request: Request = UNCONVERTED,
    targets: Targets | None = None,
) -> Plan:
    """Survey and plan, without touching a device. `rests`: the state is stored there, not computed with."""
    stages = Stages()
    stages.begin("survey")
    inventory = survey_objects(objects)
    stages.begin("plan")
    kept = keep_of(objects, keep)
    made = make_plan(inventory, target, keep=kept, free_bytes=free_bytes, rests=rests, request=request, targets=targets)
    return replace(made, stages=stages.end())


def plan_sharded(
    objects: dict[str, Any],
    target: torch.device,
    keep: Sequence[Any],
    free: FreeBytes,
    *,
    rests: bool = False,
    request: Request = UNCONVERTED,
    targets: Targets | None = None,
) -> Plan:
    """`plan_for`, after FSDP has resharded the parameters it has gathered, as it does before its shards are used."""
    planned = partial(plan_for, objects, target, keep, free, rests=rests, request=request, targets=targets)
    made = planned()
    found = made.inventory.diagnostics
    gathered = {id(each.subject): each.subject for each in found if each.diagnostic.code == "R028"}
    for module in gathered.values():
        module.reshard()
    return planned() if gathered else made


def _target(to: Any, argument: str = "to", resolve: Callable[[Any], torch.device] = resolve_device) -> torch.device:
    try:
        return resolve(to)
    except NoSuchDevice as error:
        said = repr(to) if isinstance(to, (str, int, float, torch.device, NoneType)) else type(to).__name__
        remedy = f"{argument}={error.instead!r}; or " if error.instead else ""
        remedy += f"{argument}='auto' uses the accelerator, or the CPU if there is none"
        remedy += "; tm.rehearse(...) and tm.plan(..., assume='80GB') need no accelerator" if argument == "to" else ""
        remedy = "name a device, as in to='cuda'" if resolve is assumed_device else remedy
        raise MoveRefused([Refusal("R010", f"{argument}={said}", str(error), remedy)]) from None


def _assumed_memory(assumed: int, target: torch.device) -> FreeBytes:
    """The free memory of devices, where the target's is assumed, and that of every other accelerator."""
    return lambda device: free_memory(device) if device.type == "cpu" != target.type else assumed


def _targets(to: Mapping[str, Device], resolve: Callable[[Any], torch.device]) -> Targets:
    if not to or not all(isinstance(pattern, str) for pattern in to):
        raise TypeError("to= takes a device or a dict of path patterns. Fix: to={'encoder': 'cuda:0', '*': 'cpu'}")
    return Targets({pattern: _target(device, f"to[{pattern!r}]", resolve) for pattern, device in to.items()})


def _applied(
    made: Plan, mover: str, verify: Thoroughness, progress: bool, agreement: Agreement | None = None
) -> Receipt:
    began = time.perf_counter()
    try:
        carrier, why = choose_mover(mover, made.moves)
    except NoSuchMover as error:
        refusal = Refusal("R012", f"mover={mover!r}", str(error), "mover='auto'")
        made = replace(made, refusals=made.refusals or (refusal,))
    agreement = agree_on("move", made, agreement)
    job = Job(made, carrier, why, _no_verification if verify == "off" else verify_applied)
    return apply_all(job, began=began, progress=progress, agreement=agreement)[0]


def agree_on(call: str, made: Plan, agreement: Agreement | None = None) -> Agreement | None:
    """Raise MoveRefused if the plan has refusals here or on another rank that holds part of the state."""
    with without_modes():  # whatever mode is active here, other ranks wait for an answer
        agreement = agreement or agreement_of(made.inventory)
        if agreement is not None:
            agreement.agree(call, made)
        elif made.refusals:
            raise MoveRefused(made.refusals)
    return agreement


def apply_all(*jobs: Job, began: float, progress: bool, agreement: Agreement | None = None) -> list[Receipt]:
    """Apply plans, all or none, on all ranks or none, with a progress bar."""
    words = listed([f"{listed(job.plan.inventory.roots)} to {job.plan.target}" for job in jobs])
    with ProgressBar(sum(job.plan.nbytes for job in jobs), words, wanted=progress) as bar:
        if agreement is None:
            return apply_jobs(*jobs, began=began, advance=bar.advance)
        with agreement.voting() as consent:
            return apply_jobs(*jobs, began=began, advance=bar.advance, consent=consent)


def verify_applied(made: Plan) -> Verdict | None:
    """Survey the state again and compare it with the plan."""
    if not made.moves:
        return None
    now = survey_objects(dict(zip(made.inventory.roots, made.inventory.objects, strict=True)))
    verdict = verify_move(now, made)
    if not verdict.ok:
        raise VerificationError(verdict, rolled_back=True)
    return verdict


def _no_verification(_: Plan) -> None:
    return None
