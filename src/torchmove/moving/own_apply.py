"""Modules that override `_apply`: `Module.to` would call it, so a move calls it too, after their tensors have moved.

A module may set, replace or drop tensors there: a detection head of YOLO sets its anchors, a loss of torchrl empties
its cache. Such changes are accepted, and undone if the move fails; what the objects hold is recorded before the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.internals.distributed import is_sharded
from torchmove.internals.guards import Undo
from torchmove.internals.stored import (
    CONTAINERS,
    call_apply,
    contents,
    flat_weights,
    is_recurrent,
    overrides_apply,
    refill,
    slots,
    stored_dict,
)
from torchmove.planning.placement import KEPT
from torchmove.planning.plan import Adopted, Note, Plan
from torchmove.surveying.inventory import Inventory
from torchmove.surveying.paths import ATTRIBUTE, ITEM, NOWHERE, Path
from torchmove.surveying.survey import Traversal

NOTHING = object()
Difference = tuple[Any, Any, Any]  # a key, what was there, and what is


class Recorded(Protocol):
    """An object and its recorded contents. `path` leads to it, `how` from it to one of its entries."""

    path: Path
    how: str

    def differences(self) -> Iterator[Difference]:
        """The entries that are different objects now."""
        ...

    def put_back(self, key: Any, value: Any) -> None:
        """Restore one entry."""
        ...

    def restore(self) -> None:
        """Restore all entries. Can be interrupted and called again."""
        ...


def recorded(inventory: Inventory) -> Iterator[Recorded]:
    """Record everything in the state that can be changed in place, except the bytes of tensors."""
    yield from map(_TensorAttributes, inventory.tensors.objects)
    for holder, path in list(inventory.holders.values()):
        if isinstance(holder, CONTAINERS):
            yield Container(holder, path, ITEM)
        if any(True for _ in slots(holder)):
            yield _Slots(holder, path)
        stored = stored_dict(holder)
        if not isinstance(stored, dict):  # no __dict__, or a proxy of one
            continue
        yield Container(stored, path, ATTRIBUTE)
        for name, value in stored.items() if isinstance(holder, nn.Module) else ():
            if type(value) in CONTAINERS and name in ("_parameters", "_buffers", "_modules"):
                yield Container(value, path, ATTRIBUTE)
            elif type(value) in CONTAINERS:
                yield Container(value, Path(path, ATTRIBUTE, name), ITEM)
        if isinstance(holder, Optimizer):
            yield from _of_optimizer(stored, path)


def _of_optimizer(stored: dict[str, Any], path: Path) -> Iterator[Recorded]:
    """An optimizer's state and groups, which the survey does not list as holders."""
    for name in ("state", "param_groups"):
        outer, at = stored.get(name), Path(path, ATTRIBUTE, name)
        if isinstance(outer, CONTAINERS):
            yield Container(outer, at, ITEM)
            inner = outer.values() if isinstance(outer, dict) else outer
            for number, each in enumerate(inner):
                if isinstance(each, dict):
                    yield Container(each, Path(at, ITEM, number), ITEM)
                    if isinstance(each.get("params"), list):
                        yield Container(each["params"], Path(at, ITEM, number), ITEM)


class Container:
    """A dict, a list, a set or a deque; also the `__dict__` of an object."""

    def __init__(self, container: Any, path: Path, how: str) -> None:
        self.container, self.path, self.how = container, path, how
        self.members = contents(container)

    def differences(self) -> Iterator[Difference]:
        before, now = _by_key(self.container, self.members), _by_key(self.container, contents(self.container))
        for key in {**before, **now}:
            was, found = before.get(key, NOTHING), now.get(key, NOTHING)
            if was is not found:
                yield key, was, found

    def put_back(self, key: Any, value: Any) -> None:
        if isinstance(self.container, dict):
            dict.__setitem__(self.container, key, value)
        elif isinstance(self.container, list) and key < len(self.container):
            list.__setitem__(self.container, key, value)

    def restore(self) -> None:
        refill(self.container, self.members)


def _by_key(container: Any, members: Sequence[Any]) -> dict[Any, Any]:
    if isinstance(container, dict):
        return dict(members)
    return {id(each): each for each in members} if isinstance(container, set) else dict(enumerate(members))


class _Slots:
    """The `__slots__` of an object."""

    how = ATTRIBUTE

    def __init__(self, holder: Any, path: Path) -> None:
        self.holder, self.path, self.before = holder, path, dict(slots(holder))

    def differences(self) -> Iterator[Difference]:
        now = dict(slots(self.holder))
        for name in {**self.before, **now}:
            was, found = self.before.get(name, NOTHING), now.get(name, NOTHING)
            if was is not found:
                yield name, was, found

    def put_back(self, key: Any, value: Any) -> None:
        # Bypasses the class's __setattr__, such as that of a frozen dataclass or a module.
        object.__delattr__(self.holder, key) if value is NOTHING else object.__setattr__(self.holder, key, value)

    def restore(self) -> None:
        for name, was, _ in list(self.differences()):
            self.put_back(name, was)


class _TensorAttributes:
    """What is attached to a tensor: its gradient, its attributes, and requires_grad. The verification finds changes of
    these."""

    path, how = NOWHERE, ATTRIBUTE

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.requires_grad = tensor, tensor.requires_grad
        self.gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        self.attributes = Container(tensor.__dict__, self.path, self.how)

    def differences(self) -> Iterator[Difference]:
        return iter(())

    def put_back(self, key: Any, value: Any) -> None:
        """Nothing to do: a tensor has no entries."""

    def restore(self) -> None:
        if self.tensor.is_leaf:
            if self.tensor.requires_grad is not self.requires_grad:
                self.tensor.requires_grad_(self.requires_grad)
            if self.tensor.grad is not self.gradient:
                self.tensor.grad = self.gradient
        self.attributes.restore()


def has_overrides(plan: Plan) -> bool:
    return any(True for _ in _overriding(plan))


def call_overrides(plan: Plan, undo: Undo) -> Adopted:
    """Call the `_apply` of every module that overrides it. Tensors of the state are on the target already and stay the
    same objects; any other tensor it passes to the function is moved there."""
    modules = list(_overriding(plan))
    # torch's own recurrent modules change only their own lists, so nothing else needs recording.
    before = [] if all(is_recurrent(type(each.module)) for each in modules) else [*recorded(plan.inventory)]
    recurrent = [Container(stored_dict(each.module), each.path, ATTRIBUTE) for each in modules if not before]
    undo += [each.restore for each in (*before, *recurrent)]
    for module, _, device in modules:
        call_apply(module, partial(_on_device, plan.inventory.number, device, plan.dtype))
    _restore_kept(plan, before)
    changes = (_Change(each, *difference, modules) for each in before for difference in each.differences())
    return _adopted(plan, [change for change in changes if change.tensors_before.keys() != change.tensors_now.keys()])


def _restore_kept(plan: Plan, before: Sequence[Recorded]) -> None:
    """Restore kept tensors that a module replaced."""
    kept = {id(plan.inventory.tensors.objects[index]) for index, why in plan.reasons.items() if why == KEPT}
    for each in before if kept else ():
        for key, was, _ in list(each.differences()):
            if id(was) in kept:
                each.put_back(key, was)


def _on_device(known: Mapping[int, int], device: torch.device, dtype: torch.dtype | None, tensor: Tensor) -> Tensor:
    cast_to = dtype if dtype is not None and (tensor.is_floating_point() or tensor.is_complex()) else tensor.dtype
    if id(tensor) in known and tensor.dtype == cast_to:
        return tensor
    # A plain attribute that the module itself passes is cast as by `Module.to`; it is on its device already.
    return tensor.to(cast_to) if id(tensor) in known else tensor.to(device, cast_to)


class _Overriding(NamedTuple):
    module: Any
    path: Path
    device: torch.device  # that the first of its tensors moves to


def _overriding(plan: Plan) -> Iterator[_Overriding]:
    if not plan.moves:
        return
    inventory = plan.inventory
    moving = {*plan.moves.indices()}
    shared = {
        id(inventory.tensors.objects[index]) for storage in inventory.storages.shared() for index in storage.indices
    }
    overriding = {*filter(overrides_apply, {type(holder) for holder, _ in inventory.holders.values()})}
    for holder, path in inventory.holders.values():
        if type(holder) not in overriding or is_sharded(holder):
            continue  # FSDP's override would allocate every shard again
        # A recurrent module flattens its weights into one storage. Weights that share a storage are flat already, or
        # share it with other tensors.
        if isinstance(holder, nn.RNNBase) and not shared.isdisjoint(map(id, flat_weights(holder))):
            continue
        numbers = [inventory.number.get(id(tensor)) for tensor in _registered(holder)]
        if not numbers:
            yield _Overriding(holder, path, plan.target)
        for first in (number for number in numbers if number in moving):
            yield _Overriding(holder, path, plan.placement[first])
            break


def _registered(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module and its submodules. Reads `__dict__`: `parameters()` may be overridden."""
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
    """An entry that is a different object now, and the tensors in it before and now, by id."""

    def __init__(self, of: Recorded, key: Any, was: Any, now: Any, modules: Sequence[_Overriding]) -> None:
        self.path, self.was = Path(of.path, of.how, key), was
        self.by = _nearest(self.path, modules)
        self.tensors_before, self.tensors_now = _tensors_in(was), _tensors_in(now)


def _nearest(path: Path, modules: Sequence[_Overriding]) -> _Overriding:
    """The innermost of these modules that contains an entry; the first of all if none does."""
    by_path = {id(each.path): each for each in modules}
    inwards = [by_path[id(step)] for step in path.steps() if id(step) in by_path]
    return inwards[-1] if inwards else modules[0]


def _tensors_in(value: Any) -> dict[int, Tensor]:
    walk = Traversal()
    if value is not NOTHING:
        walk.enter(NOWHERE, value)
        walk.follow_tensors()
    return {id(tensor): tensor for tensor in walk.tensors}


def _adopted(plan: Plan, changes: Sequence[_Change]) -> Adopted:
    known = plan.inventory.number.keys()
    dropped = {me for change in changes for me in change.tensors_before} & known
    added = {me: change.by.device for change in changes for me in change.tensors_now if me not in known}
    replaced = {id(change.was): str(change.path) for change in changes if isinstance(change.was, nn.Parameter)}
    return Adopted(frozenset(dropped), added, replaced, tuple(_notes(changes)))


def _notes(changes: Sequence[_Change]) -> Iterator[Note]:
    """One note for each module."""
    for by in {id(change.by.module): change.by for change in changes}.values():
        paths = [str(change.path) for change in changes if change.by.module is by.module]
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Note(
            "N060", str(by.path), f"{type(by.module).__name__}._apply changed {paths[0]}{others}; the changes are kept"
        )
