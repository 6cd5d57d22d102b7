"""What a tensor of the given objects is to the user, told by its path: that decides what to do about it."""

from __future__ import annotations

from torch import nn

from torchmove import _paths
from torchmove._records import Inventory, Slot
from torchmove.rehearsal.provenance import Provenance

_CLOSURE = {_paths.CELL, _paths.REFERENT}


def provenance_of(inventory: Inventory, index: int, data: set[str], outside: set[str]) -> Provenance | None:
    """`data`: the names of the objects that no move takes along, such as a batch; `outside`: of those not given."""
    slot = inventory.slots[index]
    steps = list(slot.path.steps())
    path = str(slot.path)
    if steps[0].what in data:
        return Provenance("input", f"{path} is on cpu", f"{path} = {path}.to(device), before it is used")
    if steps[0].what in outside:
        kind = "cache" if _is_cached(steps) else "loss"
        remedy = "give it to the rehearsal, and to tm.move, too; or move it before"
        return Provenance(kind, f"{path} is on cpu: it belongs to none of the given objects", remedy)
    if slot.role == "state":
        return Provenance(
            "optimizer", f"{path} is on cpu: Module.to does not see optimizers", "tm.move(model, optimizer, to=...)"
        )
    kind, what = _kind(inventory, slot, steps)
    return Provenance(kind, f"{path} is on cpu: {what}", _remedy(kind, slot))


def _kind(inventory: Inventory, slot: Slot, steps: list[_paths.Path]) -> tuple[str, str]:
    names = [step.what for step in steps if type(step.what) is str]
    hows = {step.how for step in steps}
    if _is_cached(steps):
        return "cache", "it was cached there"
    if _paths.CELL in hows or {"__defaults__", "__kwdefaults__", "keywords", "args"} & {*names}:
        return "closure", "a function holds it, and Module.to does not look there"
    if slot.role in ("parameter", "buffer"):
        return "container", "its module is in a container that Module.to does not look into"
    holder = {id(path): holder for holder, path in inventory.holders.values()}.get(id(slot.before))
    if isinstance(holder, nn.Module) and slot.how is _paths.ATTRIBUTE:
        return "attribute", "a plain attribute, not a buffer"
    return "container", "in a container that Module.to does not look into"


def _is_cached(steps: list[_paths.Path]) -> bool:
    named = (step.what.lower() for step in steps if type(step.what) is str)
    return any(step.how is _paths.REFERENT for step in steps) or any(
        "cache" in name or "memo" in name for name in named
    )


def _remedy(kind: str, slot: Slot) -> str:
    if kind == "attribute":
        return f'self.register_buffer("{slot.what}", ..., persistent=False)'
    return {
        "container": "nn.ParameterList, nn.ModuleList or buffers; or tm.move, which finds it",
        "cache": "clear the cache when the model moves, or key it by device; or tm.move, which finds it",
        "closure": "take the tensor as an argument, or send it there inside; or tm.move, which finds it",
    }[kind]
