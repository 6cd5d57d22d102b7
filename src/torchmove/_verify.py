"""Is it all there? A fresh survey, compared with what the plan recorded. Asks nobody whether it went well.

Each check is a function from what is (`now`) and what should be to findings; the table at the end names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchmove import _devices, _paths
from torchmove._digest import digests
from torchmove._records import Finding, Inventory, Plan, Slot, Verdict
from torchmove._storage import plain_torch

_MOVE_IT = "tm.move(..., to=...) moves it with the rest"
_REPORT_IT = "something changed the state while it moved: move it from one thread, with nothing else running"


class Case(NamedTuple):
    """What is, and what should be: the plan that was carried out."""

    now: Inventory
    plan: Plan

    def pairs(self) -> Iterator[tuple[int, Slot, Slot]]:
        """Each tensor that is still there: its index in the plan, as planned, as it is."""
        number, slots = self.now.number, self.now.slots
        for index, slot in enumerate(self.plan.inventory.slots):
            at = number.get(id(slot.tensor))
            if at is not None:
                yield index, slot, slots[at]


def verify_move(now: Inventory, plan: Plan) -> Verdict:
    """Is the state what the plan made of it?"""
    case = Case(now, plan)
    checks = _MOVE_CHECKS if plan.digests is not None else {k: v for k, v in _MOVE_CHECKS.items() if k != "values"}
    return Verdict(now, tuple(checks), tuple(finding for check in checks.values() for finding in check(case)))


def verify_place(now: Inventory, would: Plan) -> Verdict:
    """Is all where it should be? `would` is the plan of moving it there: what it would still do is missing."""
    case = Case(now, would)
    return Verdict(
        now, tuple(_PLACE_CHECKS), tuple(finding for check in _PLACE_CHECKS.values() for finding in check(case))
    )


# ---------------------------------------------------------------- after a move


def _values(case: Case) -> Iterator[Finding]:
    assert case.plan.digests is not None
    with plain_torch():
        found = digests(case.now.slots)
    for index, slot, is_now in case.pairs():
        if found[case.now.number[id(is_now.tensor)]] != case.plan.digests[index]:
            yield Finding("V101", str(slot.path), "its bytes are not what they were", _REPORT_IT)


def _identity(case: Case) -> Iterator[Finding]:
    planned = case.plan.inventory
    for slot in planned.slots:
        if id(slot.tensor) not in case.now.number and slot.path.how is not _paths.CALL:
            yield Finding("V301", str(slot.path), "the tensor that was here is no longer part of the state", _REPORT_IT)
    for slot in case.now.slots:
        if id(slot.tensor) not in planned.number and slot.path.how is not _paths.CALL:
            yield Finding("V302", str(slot.path), "this tensor was not part of the state before", _REPORT_IT)


def _aliasing(case: Case) -> Iterator[Finding]:
    """Windows of one storage are windows of one storage still, as far apart as they were; no others became so."""
    number, slots = case.now.number, case.now.slots
    was = {id(slot.tensor): slot for slot in case.plan.inventory.slots}
    for block in case.plan.inventory.blocks:
        shared = [case.plan.inventory.slots[index] for index in block.slots]
        present = [slots[number[id(slot.tensor)]] for slot in shared if id(slot.tensor) in number]
        for slot in present[1:]:
            # On a device without storages nobody can tell.
            if slot.storage != present[0].storage and slot.storage_bytes >= 0:
                why = f"no longer shares its storage with {present[0].path}"
                yield Finding("V201", str(slot.path), why, _REPORT_IT)
    for block in case.now.blocks:
        if len(block.slots) > 1:
            yield from _overlaps([slots[index] for index in block.slots], was)


def _overlaps(shared: list[Slot], was: dict[int, Slot]) -> Iterator[Finding]:
    ordered = sorted((slot for slot in shared if slot.nbytes), key=_start)
    for one, other in pairwise(ordered):
        before, before_other = was.get(id(one.tensor)), was.get(id(other.tensor))
        if before is None or before_other is None or _start(other) >= _start(one) + _reach(one):
            continue
        apart = _start(other) - _start(one)
        if before.storage != before_other.storage or _start(before_other) - _start(before) != apart:
            yield Finding("V202", str(other.path), f"overlaps {one.path}, and did not before", _REPORT_IT)


def _start(slot: Slot) -> int:
    return slot.offset * slot.dtype.itemsize


def _reach(slot: Slot) -> int:
    steps = sum((length - 1) * step for length, step in zip(slot.shape, slot.stride, strict=True))
    return (steps + 1) * slot.dtype.itemsize


def _placement(case: Case) -> Iterator[Finding]:
    for index, slot, is_now in case.pairs():
        if is_now.device != case.plan.placement[index]:
            why = f"is on {is_now.device}, should be on {case.plan.placement[index]}"
            yield Finding("V401", str(slot.path), why, _REPORT_IT)


def _metadata(case: Case) -> Iterator[Finding]:
    for _, slot, is_now in case.pairs():
        for name in ("dtype", "shape", "stride", "requires_grad"):
            # A stride says nothing about a tensor that shows no storage, on one side or the other.
            if name == "stride" and (slot.storage_bytes < 0 or is_now.storage_bytes < 0):
                continue
            # What a hook computes anew before each forward comes without a graph until then.
            if name == "requires_grad" and slot.role == "computed":
                continue
            was, found = getattr(slot, name), getattr(is_now, name)
            if was != found:
                yield Finding("V402", str(slot.path), f"its {name} was {was} and is {found}", _REPORT_IT)


# ---------------------------------------------------------------- at any time


def _in_place(case: Case) -> Iterator[Finding]:
    holders = {id(path): holder for holder, path in case.now.holders.values()}
    for move in case.plan.moves:
        for index in move.block.slots:
            slot = case.now.slots[index]
            why = f"is on {slot.device}, not on {move.target}: {_what_it_is(slot, holders)}"
            yield Finding("V401", str(slot.path), why, _how_to_mend(slot, holders))


def _holder(slot: Slot, holders: dict[int, Any]) -> Any:
    return holders.get(id(slot.path.before))


def _what_it_is(slot: Slot, holders: dict[int, Any]) -> str:
    if slot.role != "tensor":
        return f"a {slot.role}" if slot.role != "state" else "optimizer state"
    holder = _holder(slot, holders)
    if isinstance(holder, nn.Module):
        return f"a plain attribute of {type(holder).__name__}, not a buffer, so .to() does not see it"
    return f"a tensor in a {type(holder).__name__}, out of .to()'s sight" if holder is not None else "a tensor"


def _how_to_mend(slot: Slot, holders: dict[int, Any]) -> str:
    holder, name = _holder(slot, holders), slot.path.what
    if slot.role == "tensor" and isinstance(holder, nn.Module) and slot.path.how is _paths.ATTRIBUTE:
        register = f'self.register_buffer("{name}", ..., persistent=False)'
        return f"in {type(holder).__name__}.__init__: {register}; or {_MOVE_IT}"
    return _MOVE_IT


def _trained(case: Case) -> Iterator[Finding]:
    """An optimizer whose parameters stayed behind and belong to no given module does not train the model."""
    objects = dict(zip(case.now.roots, case.now.objects, strict=True))
    if not any(isinstance(value, nn.Module) for value in objects.values()):
        return
    for name, value in objects.items():
        if isinstance(value, Optimizer) and _trains_others(case.now, value, case.plan.target):
            why = "none of its parameters belongs to the model: it trains something else"
            yield Finding("V303", name, why, "make the optimizer after the move, or move with tm.move")


def _trains_others(now: Inventory, optimizer: Optimizer, on: torch.device) -> bool:
    mine = [now.number.get(id(each)) for group in optimizer.param_groups for each in group["params"]]
    slots = [now.slots[index] for index in mine if index is not None]
    left_behind = (slot.device != on and "param_groups" in slot.path.names() for slot in slots)
    return bool(slots) and all(left_behind)


def _remembered(case: Case) -> Iterator[Finding]:
    on = case.plan.target
    for value in case.now.device_values:
        device = _devices.remembered(value.what, value.value)
        if device is not None and isinstance(value.holder, nn.Module) and not _devices.same(device, on):
            why = f"remembers {value.value!s}, the module is on {on}"
            yield Finding("V403", str(value.path), why, "ask a parameter for its device instead of remembering it")


Check = Callable[[Case], Iterator[Finding]]

_MOVE_CHECKS: dict[str, Check] = {
    "identity": _identity,
    "placement": _placement,
    "metadata": _metadata,
    "aliasing": _aliasing,
    "values": _values,
}
_PLACE_CHECKS: dict[str, Check] = {
    "placement": _in_place,
    "what the optimizer trains": _trained,
    "remembered devices": _remembered,
}
