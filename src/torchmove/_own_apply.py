"""Modules that override `_apply`: `Module.to` would call it, so a move calls it too, once their tensors have moved.

What such a module sets, replaces or drops there is its own business: a detection head of YOLO gives itself anchors, a
loss of torchrl empties its cache. The change is adopted, not held against the move, and undone if the move fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchmove import _fsdp, _paths
from torchmove._contents import NOTHING, Container, Recorded, recorded
from torchmove._paths import Path
from torchmove._places import KEPT
from torchmove._records import Adopted, Note, Plan
from torchmove._stored import stored_dict
from torchmove._undo import Undo
from torchmove._walk import Walk


def has_overrides(plan: Plan) -> bool:
    return any(True for _ in _overriding(plan))


def call_overrides(plan: Plan, undo: Undo) -> Adopted:
    """Call the `_apply` of every module that has its own. Its tensors are on the target by now, and stay what they are;
    what else it hands to the function goes there too."""
    modules = list(_overriding(plan))
    # What torch's own recurrent modules do changes no object of the state, but lists of their own.
    before = [] if all(_is_recurrent(type(each.module)) for each in modules) else [*recorded(plan.inventory)]
    recurrent = [Container(stored_dict(each.module), each.path, _paths.ATTRIBUTE) for each in modules if not before]
    undo += [each.restore for each in (*before, *recurrent)]
    for module, _, device in modules:
        module._apply(partial(_on_device, plan.inventory.number, device))
    _put_back_kept(plan, before)
    changes = (_Change(each, *difference, modules) for each in before for difference in each.differences())
    return _adopted(plan, [change for change in changes if change.tensors_before.keys() != change.tensors_now.keys()])


def _put_back_kept(plan: Plan, before: Sequence[Recorded]) -> None:
    """What the user keeps is not a module's to replace."""
    kept = {id(plan.inventory.slots.tensors[index]) for index, why in plan.reasons.items() if why == KEPT}
    for each in before if kept else ():
        for key, was, _ in list(each.differences()):
            if id(was) in kept:
                each.put_back(key, was)


def _on_device(known: Mapping[int, int], device: torch.device, tensor: Tensor) -> Tensor:
    return tensor if id(tensor) in known else tensor.to(device)


class _Overriding(NamedTuple):
    module: Any
    path: Path
    device: torch.device  # that the first of its tensors moves to


def _overriding(plan: Plan) -> Iterator[_Overriding]:
    if not plan.moves:
        return
    inventory = plan.inventory
    moving = {*plan.moves.slots()}
    shared = {id(inventory.slots.tensors[index]) for block in inventory.blocks.shared() for index in block.slots}
    for holder, path in inventory.holders.values():
        if not _overrides(type(holder)) or _fsdp.is_sharded(holder):
            continue  # FSDP's own would make every shard anew, to see where it is: it has moved under FSDP's eyes
        # A recurrent module makes its weights one flat piece of memory. Where they share memory already, they are that
        # piece, or part of one that others look at too.
        if isinstance(holder, nn.RNNBase) and not shared.isdisjoint(map(id, holder._flat_weights)):
            continue
        numbers = [inventory.number.get(id(tensor)) for tensor in _registered(holder)]
        if not numbers:
            yield _Overriding(holder, path, plan.target)
        for first in (number for number in numbers if number in moving):
            yield _Overriding(holder, path, plan.placement[first])
            break


def _overrides(kind: type) -> bool:
    """Told by the type: a weak proxy calls itself an instance of what it stands for."""
    return issubclass(kind, nn.Module) and kind._apply is not nn.Module._apply


def _is_recurrent(kind: type[nn.Module]) -> bool:
    """It does what torch's own do: its weights become one piece of memory, and no object another."""
    return kind._apply is nn.RNNBase._apply


def _registered(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module and those below it, from what is stored: `parameters()` may be overridden."""
    todo, seen = [module], set()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        stored = stored_dict(each) or {}
        tensors = chain(stored.get("_parameters", {}).values(), stored.get("_buffers", {}).values())
        yield from (tensor for tensor in tensors if tensor is not None)
        todo += [child for child in stored.get("_modules", {}).values() if child is not None]


# ---------------------------------------------------------------- what it changed


class _Change:
    """An entry that is another object now, and the tensors that were and are in it, by their ids."""

    def __init__(self, of: Recorded, key: Any, was: Any, now: Any, modules: Sequence[_Overriding]) -> None:
        self.path, self.was = Path(of.path, of.how, key), was
        self.by = _nearest(self.path, modules)
        self.tensors_before, self.tensors_now = _tensors_in(was), _tensors_in(now)


def _nearest(path: Path, modules: Sequence[_Overriding]) -> _Overriding:
    """The innermost of these modules that an entry is below. Some reach beside them: then it is the first of all."""
    by_path = {id(each.path): each for each in modules}
    inwards = [by_path[id(step)] for step in path.steps() if id(step) in by_path]
    return inwards[-1] if inwards else modules[0]


def _tensors_in(value: Any) -> dict[int, Tensor]:
    walk = Walk()
    if value is not NOTHING:
        walk.enter(_paths.NOWHERE, value)
        walk.follow_tensors()
    return {id(tensor): tensor for tensor in walk.tensors}


def _adopted(plan: Plan, changes: Sequence[_Change]) -> Adopted:
    known = plan.inventory.number.keys()
    dropped = {me for change in changes for me in change.tensors_before} & known
    added = {me: change.by.device for change in changes for me in change.tensors_now if me not in known}
    replaced = {id(change.was): str(change.path) for change in changes if isinstance(change.was, nn.Parameter)}
    return Adopted(frozenset(dropped), added, replaced, tuple(_notes(changes)))


def _notes(changes: Sequence[_Change]) -> Iterator[Note]:
    """One for each module."""
    for by in {id(change.by.module): change.by for change in changes}.values():
        paths = [str(change.path) for change in changes if change.by.module is by.module]
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Note("N060", str(by.path), f"{type(by.module).__name__}._apply changed {paths[0]}{others}: adopted")
