"""Is the state still the one that was planned for?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from torchmove.devices import NoSuchDevice, free_memory, resolve_device
from torchmove.errors import MoveRefused, VerificationError
from torchmove.formatting import listed
from torchmove.internals.collector import without_collector
from torchmove.internals.modes import makes_fakes, plain_torch, without_modes
from torchmove.moving.agreement import Agreement, agreement_of
from torchmove.moving.apply import Job, apply_jobs
from torchmove.moving.leftovers import wait_for_freeing
from torchmove.moving.movers import NoSuchMover, choose_mover
from torchmove.moving.receipt import Receipt
from torchmove.planning.keep import keep_of
from torchmove.planning.plan import Plan, Refusal
from torchmove.planning.planner import Back, FreeBytes, make_plan
from torchmove.planning.refusals import FAKES
from torchmove.progress import ProgressBar, Stages
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.names import check, given
from torchmove.surveying.survey import survey_objects
from torchmove.verifying.digests import digests
from torchmove.verifying.verdict import Verdict
from torchmove.verifying.verify import verify_move, verify_place

STALE = Refusal(
    "R013",
    "plan",
    "the state has changed since the plan was made: tensors came, went, look at other storages, or are in use",
    "plan again, right before applying",
)


def is_current(planned: Inventory) -> bool:
    """Does a fresh survey find the same tensors, looking at the same storages?"""
    now = survey_objects(dict(zip(planned.roots, planned.objects, strict=True)))
    if not planned.tensors.metadata.is_like(now.tensors.metadata) or planned.storages.special != now.storages.special:
        return False
    if _told(planned) != _told(now):
        return False
    made_anew = {*planned.tensors.made_anew()}
    pairs = enumerate(zip(planned.tensors.objects, now.tensors.objects, strict=True))
    return all(was is found or index in made_anew for index, (was, found) in pairs)


def _told(inventory: Inventory) -> list[tuple[object, ...]]:
    """What stands in the way (a graph that is alive now, say, and was not then), and which devices are remembered."""
    facts: list[tuple[object, ...]] = [(str(path), diagnostic) for path, _, diagnostic in inventory.diagnostics]
    return facts + [(id(value.holder), str(value.path), value.value) for value in inventory.device_values]


Device = torch.device | str | int
Thoroughness = Literal["quick", "bytes", "off"]
_Planner = Callable[[dict[str, Any], torch.device, Sequence[Any], FreeBytes], Plan]


def survey(*objects: Any) -> Inventory:
    """Where is everything? Every tensor in the objects: its path, role, device, bytes, and who shares with whom.

    Args:
        *objects: modules, optimizers, schedulers, scalers, tensors, and anything that holds them.

    Returns:
        The inventory. It prints as a table; `slots` has a row for each tensor.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> [(str(slot.path), slot.role, slot.nbytes) for slot in tm.survey(model).tensors]
        [('model.weight', 'parameter', 24), ('model.bias', 'parameter', 12)]
    """
    return survey_objects(given(objects))


def plan(*objects: Any, to: Device, keep: Sequence[Any] = (), verify: Thoroughness = "quick") -> Plan:
    """What would happen? Moves nothing.

    Args:
        *objects: as for `tm.move`.
        to: as for `tm.move`.
        keep: as for `tm.move`.
        verify: "bytes" takes digests now, to be compared when the plan has been applied.

    Returns:
        The plan: what would move, what stays and why, whether there is room, and what stands in the way. Refusals are
        in the plan, not raised.

    Raises:
        MoveRefused: there is no such device.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> plan = tm.plan(model, to="cpu", keep=["model.bias"])
        >>> plan.ok, plan.tensors
        (True, 0)
        >>> tm.plan(torch.nn.Linear(2, 3, device="meta"), to="cpu").refusals[0].code
        'R030'
    """
    return _planned(given(objects), to, keep, verify, planner=plan_for)


def apply(plan: Plan, *, mover: str = "auto", progress: bool = True) -> Receipt:
    """Carry a plan out, all of it or nothing.

    Args:
        plan: from `tm.plan`. It is applied once.
        mover: as for `tm.move`.
        progress: as for `tm.move`.

    Returns:
        The receipt.

    Raises:
        MoveRefused: the plan has refusals, or the state is no longer the one that was planned for.
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
        raise TypeError(f"apply takes a plan, from tm.plan(...), not {type(plan).__name__}")
    if not plan.refusals and makes_fakes():
        plan = replace(plan, refusals=(FAKES,))
    if not plan.refusals and not is_current(plan.inventory):
        plan = replace(plan, refusals=(STALE,))
    return _applied(plan, mover, "quick" if plan.digests is None else "bytes", progress)


def verify(*objects: Any, on: Device | None = None, after: Receipt | None = None) -> Verdict:
    """Is it all there? Asks one of two questions, and changes nothing.

    Args:
        *objects: as for `tm.move`.
        on: is everything on this device, but for what an optimizer keeps elsewhere?
        after: the receipt of a move. Is everything what that made of it? With digests, if it moved with
            `verify="bytes"`.

    Returns:
        The verdict. `raise_if_bad()` turns findings into an error.

    Raises:
        TypeError: neither or both of the questions were asked.
        MoveRefused: there is no such device.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> print(tm.verify(model, on="cpu"))
        verified: 2 tensors checked for placement, orphaned optimizers, remembered devices
    """
    named = given(objects)
    if (on is None) == (after is None):
        raise TypeError("verify needs on=, the device where all should be, or after=, the receipt of a move")
    if after is not None:
        if not isinstance(after, Receipt):
            raise TypeError(f"after= takes the receipt of a move, not {type(after).__name__}")
        return verify_move(survey_objects(named), after.plan)
    would = plan_for(named, _target(on, "on"), (), lambda _: None)
    return verify_place(would.inventory, would)


def move(
    *objects: Any,
    to: Device,
    keep: Sequence[Any] = (),
    verify: Thoroughness = "quick",
    mover: str = "auto",
    progress: bool = True,
) -> Receipt:
    """Move a training state to a device: all of it or none of it. Survey, plan, apply and verify in one call.

    Args:
        *objects: modules, optimizers, schedulers, scalers, tensors, and anything that holds them.
        to: what `torch.device` takes, or "auto": the machine's accelerator, else the CPU.
        keep: what stays where it is: objects, or patterns of paths such as "model.*.table".
        verify: "quick" looks at everything but the bytes before the old copy is let go, "bytes" compares those too,
            "off" does neither.
        mover: forces a way of copying: "plain", or "staged" between cpu and cuda.
        progress: a move of more than a second shows a bar in a terminal or a notebook; False silences it.

    Returns:
        The receipt: what moved, how fast, what stayed and why, and the verdict.

    Raises:
        MoveRefused: something stands in the way. It has every reason at once.
        MoveFailed: something broke on the way.
        VerificationError: the result was not what was planned. In each case the state is what it was.

    Examples:
        >>> import torch, torchmove as tm
        >>> model = torch.nn.Linear(2, 3)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> receipt = tm.move(model, optimizer, to="auto")
        >>> tm.verify(model, optimizer, on="auto").ok
        True
        >>> tm.move(model, optimizer, to="nowhere")
        Traceback (most recent call last):
        torchmove.errors.MoveRefused: nothing was moved, for 1 reason:
        ...
    """
    return _applied(_planned(given(objects), to, keep, verify), mover, verify, progress)


def survey_named(objects: dict[str, Any]) -> Inventory:
    """The same as survey, of objects that have their names."""
    check(objects.values())
    return survey_objects(objects)


def plan_named(objects: dict[str, Any], to: Device, keep: Sequence[Any]) -> Plan:
    check(objects.values())
    return _planned(objects, to, keep, "quick", planner=plan_for)


def move_named(
    objects: dict[str, Any],
    to: Device,
    *,
    progress: bool,
    verify: Thoroughness = "quick",
    council: Agreement | None = None,
) -> Receipt:
    """The same, of objects that have their names, and by ranks that are known."""
    return _applied(_planned(objects, to, (), verify), "auto", verify, progress, council)


def refresh_named(objects: dict[str, Any], mover: str = "plain") -> Receipt:
    """Give a state new storages where it is, by the same chain as a move."""
    inventory = survey_objects(objects)
    where = inventory.tensors.metadata.devices[0] if inventory.tensors else torch.device("cpu")
    here = Back(inventory.tensors.metadata.devices, ())
    made = make_plan(inventory, where, keep=keep_of(objects, ()), free_bytes=free_memory, fresh=True, back=here)
    return _applied(made, mover, "quick", progress=False)


# ---------------------------------------------------------------- joints


def _planned(
    objects: dict[str, Any], to: Device, keep: Sequence[Any], verify: Thoroughness, planner: _Planner | None = None
) -> Plan:
    if verify not in ("quick", "bytes", "off"):
        raise ValueError(f"verify is 'quick', 'bytes' or 'off', not {verify!r}")
    wait_for_freeing()  # what is free is about to be counted
    made = (planner or plan_sharded)(objects, _target(to), keep, free_memory)
    if verify == "bytes" and made.ok:
        stages = Stages()
        stages.begin("digests")
        made = replace(made, digests=digests(made.inventory.tensors))
        made = replace(made, stages=(*made.stages, *stages.end()))
    return made


@plain_torch
@without_collector
def plan_for(
    objects: dict[str, Any],
    target: torch.device,
    keep: Sequence[Any],
    free_bytes: FreeBytes,
    *,
    rests: bool = False,
) -> Plan:
    """Survey and plan: all that happens before a device is touched. `rests`: nothing will compute with it there."""
    stages = Stages()
    stages.begin("survey")
    inventory = survey_objects(objects)
    stages.begin("plan")
    made = make_plan(inventory, target, keep=keep_of(objects, keep), free_bytes=free_bytes, rests=rests)
    return replace(made, stages=stages.end())


def plan_sharded(
    objects: dict[str, Any], target: torch.device, keep: Sequence[Any], free: FreeBytes, *, rests: bool = False
) -> Plan:
    """The same. What FSDP has gathered it gives up first, as it does itself before its shards are touched."""
    made = plan_for(objects, target, keep, free, rests=rests)
    gathered = {id(told.subject): told.subject for told in made.inventory.diagnostics if told.diagnostic.code == "R028"}
    for module in gathered.values():
        module.reshard()
    return plan_for(objects, target, keep, free, rests=rests) if gathered else made


def _target(to: Any, argument: str = "to") -> torch.device:
    try:
        return resolve_device(to)
    except NoSuchDevice as error:
        said = repr(to) if isinstance(to, (str, int, float, torch.device)) else f"a {type(to).__name__}"
        remedy = f"name a device that is there; {argument}='auto' takes the accelerator if there is one"
        remedy += "; tm.rehearse needs none" if argument == "to" else ""
        raise MoveRefused([Refusal("R010", f"{argument}={said}", str(error), remedy)]) from None


def _applied(made: Plan, mover: str, verify: Thoroughness, progress: bool, council: Agreement | None = None) -> Receipt:
    began = time.perf_counter()
    try:
        carrier, why = choose_mover(mover, made.moves)
    except NoSuchMover as error:
        refusal = Refusal("R012", f"mover={mover!r}", str(error), "mover='auto'")
        made = replace(made, refusals=made.refusals or (refusal,))
    council = agree_on("move", made, council)
    job = Job(made, carrier, why, _no_proof if verify == "off" else verify_applied)
    return apply_all(job, began=began, progress=progress, council=council)[0]


def agree_on(call: str, made: Plan, council: Agreement | None = None) -> Agreement | None:
    """Raises MoveRefused if something stands in the way, here or on another rank that has a part of the state."""
    with without_modes():  # whatever is on here, other ranks wait for an answer
        council = council or agreement_of(made.inventory)
        if council is not None:
            council.agree(call, made)
        elif made.refusals:
            raise MoveRefused(made.refusals)
    return council


def apply_all(*jobs: Job, began: float, progress: bool, council: Agreement | None = None) -> list[Receipt]:
    """Apply some plans, all or none, on all ranks or none, with a bar."""
    words = listed([f"{listed(job.plan.inventory.roots)} to {job.plan.target}" for job in jobs])
    with ProgressBar(sum(job.plan.nbytes for job in jobs), words, wanted=progress) as bar:
        if council is None:
            return apply_jobs(*jobs, began=began, advance=bar.advance)
        with council.voting() as consent:
            return apply_jobs(*jobs, began=began, advance=bar.advance, consent=consent)


def verify_applied(made: Plan) -> Verdict | None:
    """Survey the state afresh and hold it against the plan."""
    if not made.moves:
        return None
    now = survey_objects(dict(zip(made.inventory.roots, made.inventory.objects, strict=True)))
    verdict = verify_move(now, made)
    if not verdict.ok:
        raise VerificationError(verdict, rolled_back=True)
    return verdict


def _no_proof(_: Plan) -> None:
    return None
