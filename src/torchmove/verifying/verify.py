"""Verification: compare a fresh survey with what the plan recorded, independently of the code that moved.

Each check is a function from a Case (the state now, and the plan) to findings; the tables at the end name the checks.
The result is a Verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchmove.devices import is_same_device
from torchmove.errors import VerificationError
from torchmove.planning.placement import Keep
from torchmove.planning.plan import Note, Plan
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory, StateTensor
from torchmove.surveying.paths import ATTRIBUTE, CALL
from torchmove.verifying.digests import digests, makes_dense


class Finding(NamedTuple):
    """One problem found by a verification: V1xx values, V2xx aliasing, V3xx identity, V4xx placement."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Fix: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Result):
    """The result of a verification. It is true if there are no findings.

    Attributes:
        tensors: number of tensors checked.
        checked: the checks that were made.
        findings: the problems found, each with `code`, `path`, `why` and `remedy`.
        notes: what belongs to the state and was not given, each with `code`, `path` and `why`.
    """

    tensors: int
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    seen: Inventory | None = None  # the inventory that was checked, without the tensors
    placement: Sequence[torch.device] = ()  # the expected device of each tensor, if known
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Raise if there are findings.

        Raises:
            VerificationError: it lists the findings.
        """
        if self.findings:
            raise VerificationError(self)


_REPORT_IT = "find the code that changed it during or after the move (such as a module's own _apply)"


class Case(NamedTuple):
    """The state now, and the plan that says what it should be."""

    now: Inventory
    plan: Plan
    same: bool  # the tensors and their order are the same, so columns can be compared directly
    keep: Keep = Keep()

    def pairs(self) -> Iterator[tuple[int, int]]:
        """For each tensor of the plan that still exists: its index in the plan, and its index now."""
        number = self.now.number
        made_anew = _made_anew(self.plan.inventory)
        dropped = self.plan.adopted.dropped
        for tensor, index in self.plan.inventory.number.items():
            at = number.get(tensor)
            if at is not None and index not in made_anew and tensor not in dropped:
                yield index, at
        if made_anew:
            by_path = {path: at for at, path in _made_anew(self.now).items()}
            yield from ((index, by_path[path]) for index, path in made_anew.items() if path in by_path)

    def planned(self, index: int) -> StateTensor:
        return self.plan.inventory.tensors[index]


def _made_anew(inventory: Inventory) -> dict[int, str]:
    """Paths of tensors that are a new object at every access, by index; they are matched by path."""
    return {index: str(inventory.tensors[index].path) for index in inventory.tensors.made_anew()}


def verify_move(now: Inventory, plan: Plan) -> Verdict:
    """Verify that the state is what the plan made of it."""
    same = len(now.tensors) == len(now.number) and [*now.number] == [*plan.inventory.number]
    checks = dict(_MOVE_CHECKS)
    if plan.digests is None:
        del checks["values"]
    if not plan.adopted.replaced:
        del checks["replaced parameters"]
    return _verdict_of(Case(now, plan, same), checks)


def verify_place(now: Inventory, would: Plan, keep: Keep) -> Verdict:
    """Verify placement. `would` is the plan of moving the state there: each move it contains is a finding."""
    return _verdict_of(Case(now, would, same=True, keep=keep), _PLACE_CHECKS)


def _verdict_of(case: Case, checks: Mapping[str, Check]) -> Verdict:
    # Not a generator: an error would keep its frame, and with it tensors read on the target.
    findings: list[Finding] = []
    for check in checks.values():
        findings += check(case)
    placement = case.plan.placement if case.same else ()
    seen = case.now.archived(numbered=False)
    return Verdict(len(case.now.tensors), tuple(checks), tuple(findings), seen, placement)


# ---------------------------------------------------------------- after a move


def _values(case: Case) -> Iterator[Finding]:
    assert case.plan.digests is not None
    found = digests(case.now.tensors, repeats=makes_dense(case.plan.moves))
    for index, at in case.pairs():
        if found[at] != case.plan.digests[index]:
            yield Finding("V101", str(case.planned(index).path), "its bytes changed", _REPORT_IT)


def _identity(case: Case) -> Iterator[Finding]:
    if case.same:
        return
    planned, adopted = case.plan.inventory, case.plan.adopted
    for tensor, index in planned.number.items():
        entry = planned.tensors[index]
        if tensor not in case.now.number and tensor not in adopted.dropped and entry.how is not CALL:
            yield Finding("V301", str(entry.path), "this tensor is no longer part of the state", _REPORT_IT)
    for entry in case.now.tensors:
        me = id(entry.tensor)
        if me not in planned.number and me not in adopted.added and entry.how is not CALL:
            yield Finding(
                "V302", str(entry.path), "this tensor was not part of the state when it was planned", _REPORT_IT
            )


def _sharing(case: Case) -> Iterator[Finding]:
    """Tensors that shared a storage still share one."""
    shared = case.plan.inventory.storages.shared()
    entries, now_at = case.now.tensors, dict(case.pairs()) if shared else {}
    sizes = entries.metadata.storage_bytes
    first_of = (
        {at: storage.indices[0] for storage in case.now.storages.shared() for at in storage.indices} if shared else {}
    )
    for storage in shared:
        first, *others = [now_at[index] for index in storage.indices if index in now_at] or [0]
        for other in others:
            # A device without storages does not tell.
            if first_of.get(other, other) != first_of.get(first, first) and sizes[other] >= 0:
                why = f"no longer shares its storage with {entries[first].path}"
                yield Finding("V201", str(entries[other].path), why, _REPORT_IT)


def _overlaps(case: Case) -> Iterator[Finding]:
    """Tensors that overlap overlapped before, by the same offset."""
    shared = case.now.storages.shared()
    before = {at: index for index, at in case.pairs()} if shared else {}
    metadata = case.now.tensors.metadata
    starts_before = _starts(case.plan) if shared else {}
    for storage in shared:
        known = [at for at in storage.indices if at in before and metadata.nbytes[at]]
        offsets = dict(zip(storage.indices, storage.offsets, strict=True))
        extents = {at: metadata.view(at, offsets[at]).extent for at in known}
        for one, other in pairwise(sorted(known, key=extents.__getitem__)):
            (start, stop), (other_start, _) = extents[one], extents[other]
            was, other_was = (starts_before.get(before[at]) for at in (one, other))
            apart = other_was[1] - was[1] if was and other_was and was[0] == other_was[0] else None
            if other_start < stop and apart != other_start - start:
                why = f"overlaps {case.now.tensors[one].path}, which it did not before"
                yield Finding("V202", str(case.now.tensors[other].path), why, _REPORT_IT)


def _starts(plan: Plan) -> dict[int, tuple[int, int]]:
    """For each tensor that shares a storage: the first tensor on it, and the byte offset of this one."""
    dtypes = plan.metadata.dtypes
    return {
        entry: (storage.indices[0], offset * dtypes[entry].itemsize)
        for storage in plan.inventory.storages.shared()
        for entry, offset in zip(storage.indices, storage.offsets, strict=True)
    }


def _placement(case: Case) -> Iterator[Finding]:
    devices, placement = case.now.tensors.metadata.devices, case.plan.placement
    if case.same and devices == placement:
        return
    for index, at in case.pairs():
        device, place = devices[at], placement[index]
        if device != place:
            yield Finding("V401", str(case.planned(index).path), f"is on {device}, should be on {place}", _REPORT_IT)
    for tensor, place in case.plan.adopted.added.items():
        found = case.now.number.get(tensor)
        if found is not None and devices[found] != place:
            why = f"was set by a module's own _apply and is on {devices[found]}, should be on {place}"
            remedy = "in _apply(self, fn), pass the tensor through fn"
            yield Finding("V401", str(case.now.tensors[found].path), why, remedy)


def _metadata(case: Case) -> Iterator[Finding]:
    before, now = case.plan.metadata, case.now.tensors.metadata
    if case.same and all(getattr(before, name) == getattr(now, name) for name in _SHOWN.values()):
        return
    for index, at in case.pairs():
        for name, column in _SHOWN.items():
            was, found = getattr(before, column)[index], getattr(now, column)[at]
            if was == found:
                continue
            # The stride of a tensor without a storage, before or now, means nothing.
            if name == "stride" and min(before.storage_bytes[index], now.storage_bytes[at]) < 0:
                continue
            entry = case.planned(index)
            # A tensor that a hook recomputes before each forward has no graph until then; and a graph that cannot run
            # is not kept where the TensorImpl is swapped.
            if name == "requires_grad" and (entry.role == "computed" or index in case.plan.inventory.spent):
                continue
            yield Finding("V402", str(entry.path), f"its {name} was {was} and is {found}", _REPORT_IT)


_SHOWN = {
    "dtype": "dtypes",
    "shape": "shapes",
    "stride": "strides",
    "requires_grad": "requires_grads",
    "nbytes": "nbytes",
}


# ---------------------------------------------------------------- at any time


def _misplaced(case: Case) -> Iterator[Finding]:
    holders = {id(path): holder for holder, path in case.now.holders.values()}
    for index in case.plan.moves.indices():
        entry, place = case.now.tensors[index], case.plan.placement[index]
        why = f"is on {entry.device}, not on {place}: {_kind_of(entry, holders)}"
        yield Finding("V401", str(entry.path), why, _remedy_for(entry, holders, _move_call(case)))


def _holder(entry: StateTensor, holders: dict[int, Any]) -> Any:
    return holders.get(id(entry.before))


def _kind_of(entry: StateTensor, holders: dict[int, Any]) -> str:
    if entry.role != "tensor":
        return f"a {entry.role}" if entry.role != "state" else "optimizer state"
    holder = _holder(entry, holders)
    if isinstance(holder, nn.Module):
        return f"a plain attribute of {type(holder).__name__}, not a buffer, so .to() does not move it"
    return f"a tensor in a {type(holder).__name__}, which .to() does not move" if holder is not None else "a tensor"


def _move_call(case: Case) -> str:
    names = ", ".join([*case.now.roots[:3], *(["..."] if case.now.roots[3:] else [])])
    return f'tm.move({names}, to="{case.plan.target}")'


def _remedy_for(entry: StateTensor, holders: dict[int, Any], move: str) -> str:
    holder, name = _holder(entry, holders), entry.what
    if entry.role == "tensor" and isinstance(holder, nn.Module) and entry.how is ATTRIBUTE:
        register = f'self.register_buffer("{name}", ..., persistent=False)'
        return f"in {type(holder).__name__}.__init__: {register}; or {move}"
    if entry.device.type == "meta":
        return "it has no data: model.to_empty(device=...), then load its weights"
    return move


def _orphaned_optimizers(case: Case) -> Iterator[Finding]:
    """Find optimizers that do not train the model: their parameters are elsewhere and in none of its modules."""
    objects = dict(zip(case.now.roots, case.now.objects, strict=True))
    models = {name: value for name, value in objects.items() if isinstance(value, nn.Module)}
    for name, value in objects.items() if models else ():
        if isinstance(value, Optimizer) and _trains_nothing_here(case.now, value, models.values(), case.plan.target):
            why = "none of its parameters belongs to the model, so it does not train the model"
            model, kind = next(iter(models)), type(value).__name__
            yield Finding("V303", name, why, f"create it again: {name} = {kind}({model}.parameters(), ...)")


def _trains_nothing_here(now: Inventory, optimizer: Optimizer, models: Iterable[nn.Module], on: torch.device) -> bool:
    """Whether all parameters of an optimizer are in no model, and were once: they stayed behind, or have its shapes."""
    mine = [now.number.get(id(each)) for group in optimizer.param_groups for each in group["params"]]
    entries = [now.tensors[index] for index in mine if index is not None]
    if not entries or not all("param_groups" in entry.path.names() for entry in entries):
        return False
    shapes = [entry.tensor.shape for entry in entries]
    were_replaced = any(shapes == [each.shape for each in model.parameters()] for model in models)
    return were_replaced or all(entry.device != on for entry in entries)


def _replaced_parameters(case: Case) -> Iterator[Finding]:
    """Find optimizers that still hold parameters which a module has replaced."""
    replaced = case.plan.adopted.replaced
    for holder, path in case.now.holders.values() if replaced else ():
        if isinstance(holder, Optimizer):
            mine = [replaced[id(p)] for group in holder.param_groups for p in group["params"] if id(p) in replaced]
            if mine:
                more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
                why = f"a module's own _apply replaced this parameter, and {path} still trains the old one"
                yield Finding("V303", f"{mine[0]}{more}", why, "create the optimizer after model.to(device)")


def _remembered_devices(case: Case) -> Iterator[Finding]:
    on = case.plan.target
    for value in case.now.device_values:
        if not isinstance(value.holder, nn.Module) or case.keep.has(value.holder, (value.path,)):
            continue
        if not is_same_device(value.device, on):
            why = f"holds {value.value!s}, but the module is on {on}"
            yield Finding("V403", str(value.path), why, "use next(self.parameters()).device instead of a stored device")


Check = Callable[[Case], Iterator[Finding]]

_MOVE_CHECKS: dict[str, Check] = {
    "identity": _identity,
    "placement": _placement,
    "metadata": _metadata,
    "replaced parameters": _replaced_parameters,
    "sharing": _sharing,
    "overlaps": _overlaps,
    "values": _values,
}
_PLACE_CHECKS: dict[str, Check] = {
    "placement": _misplaced,
    "orphaned optimizers": _orphaned_optimizers,
    "remembered devices": _remembered_devices,
}
