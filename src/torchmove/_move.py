"""The chain in one call: survey, plan, apply, verify. The only file that knows all stages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from dataclasses import replace
from typing import Any, Literal

import torch

from torchmove import _apply, _devices, _freeing, _plan, _survey, _verify, movers
from torchmove._collector import without_collector
from torchmove._council import Council, council_of
from torchmove._digest import digests
from torchmove._errors import MoveRefused, VerificationError
from torchmove._names import names_of
from torchmove._paths import CALL
from torchmove._progress import Bar
from torchmove._records import Inventory, Plan, Receipt, Refusal, Verdict, Windows
from torchmove._storage import plain_torch
from torchmove.report import Reported

Device = torch.device | str | int
Thoroughness = Literal["quick", "bytes", "off"]
_Planner = Callable[[dict[str, Any], torch.device, Sequence[Any], _plan.FreeBytes], Plan]


def survey(*objects: Any) -> Inventory:
    """Where is everything? Every tensor in the objects: its path, role, device, bytes, and who shares with whom."""
    return _survey.survey(given(objects))


def plan(*objects: Any, to: Device, keep: Sequence[Any] = (), verify: Thoroughness = "quick") -> Plan:
    """What would happen? Moves nothing. `verify="bytes"` takes digests now, to be compared after the move."""
    return _planned(given(objects), to, keep, verify, planner=plan_for)


def apply(plan: Plan, *, mover: str = "auto", progress: bool = True) -> Receipt:
    """Carry a plan out, all of it or nothing. Refused if the state is no longer the one that was planned for."""
    if not isinstance(plan, Plan):
        raise TypeError(f"apply takes a plan, from tm.plan(...), not {type(plan).__name__}")
    if not plan.refusals and not _unchanged(plan.inventory):
        plan = replace(plan, refusals=(_STALE,))
    return _applied(plan, mover, "quick" if plan.digests is None else "bytes", progress)


def verify(*objects: Any, on: Device | None = None, after: Receipt | None = None) -> Verdict:
    """Is it all there? `on`: is everything on that device. `after`: is everything what a move made of it."""
    named = given(objects)
    if (on is None) == (after is None):
        raise TypeError("verify needs on=, the device where all should be, or after=, the receipt of a move")
    if after is not None:
        if not isinstance(after, Receipt):
            raise TypeError(f"after= takes the receipt of a move, not {type(after).__name__}")
        return _verify.verify_move(_survey.survey(named), after.plan, after.windows)
    would = plan_for(named, _target(on, "on"), (), lambda _: None)
    return _verify.verify_place(would.inventory, would)


def move(
    *objects: Any,
    to: Device,
    keep: Sequence[Any] = (),
    verify: Thoroughness = "quick",
    mover: str = "auto",
    progress: bool = True,
) -> Receipt:
    """Move a training state to a device: all of it or none of it.

    Modules, optimizers, schedulers, scalers, tensors, and anything that holds them. What is in `keep` (objects, or
    path patterns such as "model.*.table") stays. Before the old copy is let go the result is verified; `verify="bytes"`
    compares every byte too, `verify="off"` leaves it out. `mover` forces a way of copying: "plain", or "staged" between
    cpu and cuda. A move of more than a second shows a bar in a terminal or a notebook, unless `progress=False`.

    Raises MoveRefused with every reason at once, MoveFailed when something broke on the way, VerificationError when the
    result is not what was planned. In each case the state is what it was.
    """
    return _applied(_planned(given(objects), to, keep, verify), mover, verify, progress)


def move_named(
    objects: dict[str, Any],
    to: Device,
    *,
    progress: bool,
    verify: Thoroughness = "quick",
    council: Council | None = None,
) -> Receipt:
    """The same, of objects that have their names, and by ranks that are known."""
    return _applied(_planned(objects, to, (), verify), "auto", verify, progress, council)


def refresh(objects: dict[str, Any], mover: str = "plain") -> Receipt:
    """Give a state new storages where it is, by the same chain as a move."""
    inventory = _survey.survey(objects)
    where = inventory.slots.looks.devices[0] if inventory.slots else torch.device("cpu")
    keep = keep_of(objects, ())
    made = _plan.plan(inventory, where, keep=keep, free_bytes=_devices.free_bytes, fresh=True)
    return _applied(made, mover, "quick", progress=False)


# ---------------------------------------------------------------- joints


def given(objects: Sequence[Any]) -> dict[str, Any]:
    """The objects under the names that the caller of the public function has for them."""
    if not objects:
        raise TypeError("nothing was given: name the objects, as in tm.move(model, optimizer, to=...)")
    for each in objects:
        if isinstance(each, _NOT_HOLDERS):
            raise TypeError(f"{type(each).__name__} holds no state to look at: give the module, or list(...) of it")
    return names_of(objects, sys._getframe(2))


def _planned(
    objects: dict[str, Any], to: Device, keep: Sequence[Any], verify: Thoroughness, planner: _Planner | None = None
) -> Plan:
    if verify not in ("quick", "bytes", "off"):
        raise ValueError(f"verify is 'quick', 'bytes' or 'off', not {verify!r}")
    _freeing.wait()  # what is free is about to be counted
    made = (planner or plan_sharded)(objects, _target(to), keep, _devices.free_bytes)
    if verify == "bytes" and made.ok:
        with plain_torch():
            made = replace(made, digests=digests(made.inventory.slots))
    return made


def plan_for(objects: dict[str, Any], target: torch.device, keep: Sequence[Any], free_bytes: _plan.FreeBytes) -> Plan:
    """Survey and plan: all that happens before a device is touched."""
    with plain_torch(), without_collector():
        inventory = _survey.survey(objects)
        return _plan.plan(inventory, target, keep=keep_of(objects, keep), free_bytes=free_bytes)


def plan_sharded(objects: dict[str, Any], target: torch.device, keep: Sequence[Any], free: _plan.FreeBytes) -> Plan:
    """The same. What FSDP has gathered it gives up first, as it does itself before its shards are touched."""
    made = plan_for(objects, target, keep, free)
    gathered = {id(told.about): told.about for told in made.inventory.told if told.fact.code == "R028"}
    for module in gathered.values():
        module.reshard()
    return plan_for(objects, target, keep, free) if gathered else made


# Given by a slip: what runs through a state once, and what only names it.
_NOT_HOLDERS = (Iterator, KeysView, ValuesView, ItemsView, Reported, type, str, bytes, int, float)


def _target(to: Any, argument: str = "to") -> torch.device:
    try:
        return _devices.target(to)
    except _devices.NoSuchDevice as error:
        said = repr(to) if isinstance(to, (str, int, float, torch.device)) else f"a {type(to).__name__}"
        remedy = f"name a device that is there; {argument}='auto' takes the accelerator if there is one"
        raise MoveRefused([Refusal("R010", f"{argument}={said}", str(error), remedy)]) from None


def keep_of(objects: dict[str, Any], keep: Sequence[Any]) -> _plan.Keep:
    if isinstance(keep, str) or not isinstance(keep, (list, tuple, set, frozenset)):
        raise TypeError("keep takes a list of objects and patterns: keep=[ema, 'model.*.table']")
    kept = [each for each in keep if not isinstance(each, str)]
    ids = {id(each) for each in kept}
    # A given object that is not kept belongs to itself, also where a kept one holds it.
    besides = [each for each in objects.values() if id(each) not in ids]
    known = {id(value): name for name, value in objects.items()}
    named = {known.get(id(each), name): each for name, each in names_of(kept, None).items()}
    return _plan.Keep(_survey.survey(named, besides=besides), [each for each in keep if isinstance(each, str)])


def _applied(made: Plan, mover: str, verify: Thoroughness, progress: bool, council: Council | None = None) -> Receipt:
    began = time.perf_counter()
    try:
        carrier, why = movers.choose(mover, made.moves)
    except movers.NoSuchMover as error:
        refusal = Refusal("R012", f"mover={mover!r}", str(error), "mover='auto'")
        made = replace(made, refusals=made.refusals or (refusal,))
    council = agreed("move", made, council)
    job = _apply.Job(made, carrier, why, _no_proof if verify == "off" else proof_of(made))
    return carried_out(job, began=began, progress=progress, council=council)[0]


def agreed(call: str, made: Plan, council: Council | None = None) -> Council | None:
    """Raises MoveRefused if something stands in the way, here or on another rank that has a part of the state."""
    council = council or council_of(made.inventory)
    if council is not None:
        council.agree(call, made)
    elif made.refusals:
        raise MoveRefused(made.refusals)
    return council


def carried_out(*jobs: _apply.Job, began: float, progress: bool, council: Council | None = None) -> list[Receipt]:
    """Apply some plans, all or none, on all ranks or none, with a bar."""
    words = ", ".join(f"{', '.join(job.plan.inventory.roots)} to {job.plan.target}" for job in jobs)
    with Bar(sum(job.plan.nbytes for job in jobs), words, wanted=progress) as bar:
        if council is None:
            return _apply.apply(*jobs, began=began, advance=bar.advance)
        with council.voting() as consent:
            return _apply.apply(*jobs, began=began, advance=bar.advance, consent=consent)


def proof_of(made: Plan) -> _apply.Proof:
    """Survey the state afresh and hold it against the plan."""

    def proof(windows: Windows) -> Verdict | None:
        if not made.moves:
            return None
        now = _survey.survey(dict(zip(made.inventory.roots, made.inventory.objects, strict=True)))
        verdict = _verify.verify_move(now, made, windows)
        if not verdict.ok:
            raise VerificationError(verdict, rolled_back=True)
        return verdict

    return proof


def _no_proof(_: Windows) -> None:
    return None


_STALE = Refusal(
    "R013",
    "plan",
    "the state has changed since the plan was made: tensors came, went, or look at other storages",
    "plan again, right before applying",
)


def _unchanged(planned: Inventory) -> bool:
    now = _survey.survey(dict(zip(planned.roots, planned.objects, strict=True)))
    if planned.slots.looks != now.slots.looks or planned.blocks.special != now.blocks.special:
        return False
    # A part of a sparse tensor is a new object at every look.
    pairs = enumerate(zip(planned.slots.tensors, now.slots.tensors, strict=True))
    return all(was is found or planned.slots[index].how is CALL for index, (was, found) in pairs)
