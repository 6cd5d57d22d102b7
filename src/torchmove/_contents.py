"""What the objects of a state hold, recorded before a module's own code runs: to be compared with it, or put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove import _paths
from torchmove._paths import Path
from torchmove._records import Inventory
from torchmove._stored import CONTAINERS, contents, refill, slots, stored_dict

NOTHING = object()
Difference = tuple[Any, Any, Any]  # a key, what was there, and what is


class Recorded(Protocol):
    """An object and what was in it. `path` and `how` lead to it, and from it to one of its entries."""

    path: Path
    how: str

    def differences(self) -> Iterator[Difference]:
        """The entries that are other objects now."""
        ...

    def put_back(self, key: Any, value: Any) -> None:
        """One entry."""
        ...

    def restore(self) -> None:
        """All of them. Can be broken off and called again."""
        ...


def recorded(inventory: Inventory) -> Iterator[Recorded]:
    """Everything in the state that can be changed in place, but for the bytes of tensors."""
    yield from map(_Marks, inventory.slots.tensors)
    for holder, path in list(inventory.holders.values()):
        if isinstance(holder, CONTAINERS):
            yield Container(holder, path, _paths.ITEM)
        if any(True for _ in slots(holder)):
            yield _Slots(holder, path)
        stored = stored_dict(holder)
        if not isinstance(stored, dict):  # none, or a view of one
            continue
        yield Container(stored, path, _paths.ATTRIBUTE)
        for name, value in stored.items() if isinstance(holder, nn.Module) else ():
            if type(value) in CONTAINERS and name in ("_parameters", "_buffers", "_modules"):
                yield Container(value, path, _paths.ATTRIBUTE)
            elif type(value) in CONTAINERS:
                yield Container(value, Path(path, _paths.ATTRIBUTE, name), _paths.ITEM)
        if isinstance(holder, Optimizer):
            yield from _of_optimizer(stored, path)


def _of_optimizer(stored: dict[str, Any], path: Path) -> Iterator[Recorded]:
    """Its state and groups, which the survey reads without entering them as holders."""
    for name in ("state", "param_groups"):
        outer, at = stored.get(name), Path(path, _paths.ATTRIBUTE, name)
        if isinstance(outer, CONTAINERS):
            yield Container(outer, at, _paths.ITEM)
            inner = outer.values() if isinstance(outer, dict) else outer
            for number, each in enumerate(inner):
                if isinstance(each, dict):
                    yield Container(each, Path(at, _paths.ITEM, number), _paths.ITEM)
                    if isinstance(each.get("params"), list):
                        yield Container(each["params"], Path(at, _paths.ITEM, number), _paths.ITEM)


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

    how = _paths.ATTRIBUTE

    def __init__(self, holder: Any, path: Path) -> None:
        self.holder, self.path, self.before = holder, path, dict(slots(holder))

    def differences(self) -> Iterator[Difference]:
        now = dict(slots(self.holder))
        for name in {**self.before, **now}:
            was, found = self.before.get(name, NOTHING), now.get(name, NOTHING)
            if was is not found:
                yield name, was, found

    def put_back(self, key: Any, value: Any) -> None:
        # Past any __setattr__ of the class, that of a frozen dataclass or of a module.
        object.__delattr__(self.holder, key) if value is NOTHING else object.__setattr__(self.holder, key, value)

    def restore(self) -> None:
        for name, was, _ in list(self.differences()):
            self.put_back(name, was)


class _Marks:
    """What hangs on a tensor: its gradient, its attributes, and whether it requires a gradient. Changes of these are
    found by the verification."""

    path, how = _paths.NOWHERE, _paths.ATTRIBUTE

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.requires_grad = tensor, tensor.requires_grad
        self.gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        self.attributes = Container(tensor.__dict__, self.path, self.how)

    def differences(self) -> Iterator[Difference]:
        return iter(())

    def put_back(self, key: Any, value: Any) -> None:
        """It has no entries."""

    def restore(self) -> None:
        if self.tensor.is_leaf:
            if self.tensor.requires_grad is not self.requires_grad:
                self.tensor.requires_grad_(self.requires_grad)
            if self.tensor.grad is not self.gradient:
                self.tensor.grad = self.gradient
        self.attributes.restore()
