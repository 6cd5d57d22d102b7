"""Where is everything? Walk with the readers, look at every tensor once, group the windows by storage.

The walk goes in waves: first through the holders, then through what the tensors found on the way carry, and so on. A
wave only collects its tensors; they are read all together in the end, which is the quicker way.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove import _devices, _paths
from torchmove._graphs import in_live_graphs
from torchmove._paths import Keyed, Path, make_path
from torchmove._records import (
    Block,
    Bunch,
    Child,
    DeviceValue,
    Fact,
    Inventory,
    Level,
    Owner,
    Reader,
    Role,
    Shell,
    Slot,
    Told,
    attribute,
    make_child,
)
from torchmove._shells import PLAIN, Unmovable, is_window, parts_of
from torchmove._storage import look_all, look_at_whole, plain_torch, reached
from torchmove._stored import ATOMS
from torchmove.readers import reader_for


def survey(objects: Mapping[str, Any], *, besides: Sequence[Any] = ()) -> Inventory:
    """The inventory of some objects, each under the name its paths begin with. What is in `besides` is not entered."""
    walk = _Walk()
    walk.holders.update((id(each), (each, _paths.root("..."))) for each in besides)
    roots = [(_paths.root(name), value) for name, value in _modules_first(objects)]
    # A given object is found under its own name, not inside another one that holds it too.
    walk.holders.update((id(value), (value, path)) for path, value in roots)
    with plain_torch(), _without_collector():
        for path, value in roots:
            walk.enter(path, value)
        walk.follow_tensors()
        for each in besides:
            walk.holders.pop(id(each), None)
        return walk.inventory(objects)


def _modules_first(objects: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A parameter gets its path from the model that registers it, not from the optimizer that also holds it."""

    def rank(entry: tuple[str, Any]) -> int:
        kind = type(entry[1])
        return 0 if issubclass(kind, nn.Module) else 1 if issubclass(kind, Optimizer) else 2

    return sorted(objects.items(), key=rank)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Many small objects are made and all of them are kept: collecting in between finds nothing and costs as much."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            # To the oldest generation unseen, or the next allocation would have the collector look at all of them.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _Found(NamedTuple):
    """A tensor that the walk came across."""

    tensor: Tensor
    path: Path
    role: Role
    owner: Owner | None


class _Stair(NamedTuple):
    """Where the walk stands in one holder: what is left to visit there, and what its children inherit."""

    children: Iterator[Child | Bunch | Fact]
    path: Path
    holder: Any
    role: Role | None
    owner: Owner | None


class _Walk:
    """One survey under way. Walks with a stack of its own: a state may be deeper than Python's."""

    def __init__(self) -> None:
        self.wave: list[_Found] = []
        self.windows: list[_Found] = []
        self.wholes: list[_Found] = []
        self.shells: list[Shell] = []
        self.told: list[Told] = []
        self.device_values: list[DeviceValue] = []
        self.also: list[tuple[int, Path]] = []
        self.paths: dict[int, Path] = {}  # of every tensor seen, by its id
        self.holders: dict[int, tuple[Any, Path]] = {}  # every holder seen; holding it keeps its id its own
        self.readers: dict[type, Reader] = {}
        self.stack: list[_Stair] = []

    # ------------------------------------------------------------ through the holders

    def enter(self, path: Path, value: Any) -> None:
        """Walk a given object."""
        if issubclass(type(value), Tensor):
            self.find(value, path, "tensor", None)
        elif type(value) not in ATOMS:
            self.open(value, path, None, None)
            self.climb()

    def climb(self) -> None:
        """Walk what is on the stack, the first child first."""
        stack = self.stack
        while stack:
            stair = stack[-1]
            for child in stair.children:
                if isinstance(child, Fact):
                    self.told.append(Told(stair.path, stair.holder, child))
                elif self.visit_bunch(child, stair) if isinstance(child, Bunch) else self.visit(child, stair):
                    break  # a new stair is on the stack; this one goes on after it
            else:
                stack.pop()

    def visit_bunch(self, bunch: Bunch, stair: _Stair) -> bool:
        """See to many children. True: some are holders, which come next."""
        how, entries, role, owner, at = bunch
        before = self.step(stair.path, *at) if at else stair.path
        rest = []
        for key, value in entries.items():
            if issubclass(type(value), Tensor):
                self.find(value, make_path((before, how, key)), role, owner)
            elif type(value) not in ATOMS:
                rest.append(make_child((how, key, value, role, owner)))
        if rest:
            self.stack.append(_make_stair((iter(rest), before, entries, role, owner)))
        return bool(rest)

    def visit(self, child: Child, stair: _Stair) -> bool:
        """See to one child. True: it has children of its own, which come next."""
        how, what, value, role, owner = child
        kind = type(value)
        if issubclass(kind, Tensor):
            path = self.step(stair.path, how, what)
            self.find(value, path, role or stair.role or "tensor", owner or stair.owner)
            return False
        if kind in ATOMS or kind is torch.device:
            if kind is torch.device or kind is str:
                self.note_device(child, stair)
            return False
        if id(value) in self.holders:
            return False
        path = self.step(stair.path, how, what)
        # A level is made by a reader on the way and gone at once: its id is not its own.
        if kind is not Level:
            self.holders[id(value)] = (value, path)
        self.open(value, path, role or stair.role, owner or stair.owner)
        return True

    def step(self, before: Path, how: str, what: Any) -> Path:
        if how is _paths.KEYED:
            what = Keyed(what, self.paths.get(id(what), _NOWHERE))
        return make_path((before, how, what))

    def open(self, value: Any, path: Path, role: Role | None, owner: Owner | None) -> None:
        kind = type(value)
        reader = self.readers.get(kind)
        if reader is None:
            reader = self.readers[kind] = reader_for(kind)
            self.told += [Told(path, value, fact) for fact in _on_class(kind)]
        self.stack.append(_make_stair((iter(reader(value)), path, value, role, owner)))

    def find(self, tensor: Tensor, path: Path, role: Role, owner: Owner | None) -> None:
        me = id(tensor)
        if me in self.paths:
            self.also.append((me, path))
        else:
            self.paths[me] = path
            self.wave.append(_make_found((tensor, path, role, owner)))

    def note_device(self, child: Child, stair: _Stair) -> None:
        if _devices.remembered(child.what, child.value) is not None:
            path = Path(stair.path, child.how, child.what)
            self.device_values.append(DeviceValue(stair.holder, child.how, child.what, child.value, path))

    # ------------------------------------------------------------ through what tensors carry

    def follow_tensors(self) -> None:
        while self.wave:
            wave, self.wave = self.wave, []
            for found in wave:
                tensor = found.tensor
                if not is_window(tensor):
                    self.visit_shell(found)
                    continue
                self.windows.append(found)
                self.follow_gradient(found)
                if tensor.__dict__ or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                    self.push(found, _hung_on(tensor))
            self.climb()

    def follow_gradient(self, found: _Found) -> None:
        tensor = found.tensor
        # Asking the result of a computation for its gradient is answered with a warning.
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is not None:
            path = make_path((found.path, _paths.ATTRIBUTE, "grad"))
            self.find(gradient, path, "gradient", Owner(Tensor, _NO_GROUP, tensor))

    def push(self, found: _Found, children: Iterable[Child]) -> None:
        self.stack.append(_make_stair((iter(children), found.path, found.tensor, None, None)))

    def visit_shell(self, found: _Found) -> None:
        tensor, path, role, owner = found
        try:
            parts = parts_of(tensor)
        except Unmovable as error:
            self.tell(found, Fact("R031", str(error), "keep it, or move it by its own means before"))
            return
        self.follow_gradient(found)
        if parts is None:
            self.wholes.append(found)
            self.push(found, _hung_on(tensor))
            return
        inner = tuple(part.tensor for part in parts.parts)
        self.shells.append(Shell(tensor, path, role, owner, inner, parts.rebuild))
        inside = [Child(part.how, part.what, part.tensor, role, owner) for part in parts.parts]
        self.push(found, [*inside, *_hung_on(tensor, besides=inner)])

    # ------------------------------------------------------------ the result

    def inventory(self, objects: Mapping[str, Any]) -> Inventory:
        slots = self.slots()
        self.tell_of_tensors(slots)
        return Inventory(
            objects=tuple(objects.values()),
            roots=tuple(objects),
            slots=tuple(slots),
            blocks=tuple(_blocks(slots)),
            shells=tuple(self.shells),
            device_values=tuple(self.device_values),
            told=tuple(self.told),
            also=tuple(self.also),
            holders=self.holders,
        )

    def slots(self) -> list[Slot]:
        # A class of its own may answer otherwise: an uninitialised parameter refuses to tell its shape.
        readable = [tensor if type(tensor) in PLAIN else tensor.data for tensor, _, _, _ in self.windows]
        seen = [*look_all(readable), *(look_at_whole(found.tensor) for found in self.wholes)]
        return [_make_slot(found + look) for found, look in zip([*self.windows, *self.wholes], seen, strict=True)]

    def tell(self, about: _Found | Slot, fact: Fact) -> None:
        self.told.append(Told(about.path, about.tensor, fact))

    def tell_of_tensors(self, slots: Sequence[Slot]) -> None:
        trained = [slot for slot in slots if slot.requires_grad]
        computed = [slot.tensor for slot in trained if slot.role == "computed"]
        live = in_live_graphs([slot.tensor for slot in trained], besides=computed)
        for slot in trained:
            if id(slot.tensor) in live:
                self.tell(slot, _GRAPH_OVER)
            if slot.role != "computed" and not slot.tensor.is_leaf:
                self.tell(slot, _GRAPH_INSIDE)
        if any(device.type == "meta" for device in set(map(attrgetter("device"), slots))):
            for slot in slots:
                if slot.device.type == "meta":
                    self.tell(slot, _META)


_NO_GROUP: dict[str, Any] = {}
_NOWHERE = _paths.root("...")
_make_stair = partial(tuple.__new__, _Stair)
_make_found = partial(tuple.__new__, _Found)
_make_slot = partial(tuple.__new__, Slot)
_make_block = partial(tuple.__new__, Block)


def _blocks(slots: Sequence[Slot]) -> Iterator[Block]:
    """The slots by storage. Nearly always a storage has one, and it sees all of it."""
    first_of: dict[int, int] = {}
    shared: dict[int, list[int]] = {}
    for index, storage in enumerate(map(attrgetter("storage"), slots)):
        first = first_of.setdefault(storage, index)
        if first != index:
            shared.setdefault(storage, [first]).append(index)
    wholes: dict[int, tuple[tuple[int, int], ...]] = {}  # one for all storages of a size
    for storage, first in first_of.items():
        slot = slots[first]
        size = slot.storage_bytes
        indices = tuple(shared[storage]) if storage in shared else (first,)
        if size < 0:
            spans: tuple[tuple[int, int], ...] = ()
        elif slot.nbytes == size or any(slots[index].nbytes == size for index in indices):
            spans = wholes.setdefault(size, ((0, size),))
        else:
            spans = reached([slots[index] for index in indices])
        yield _make_block((indices, slot.device, size, spans))


def _hung_on(tensor: Tensor, besides: tuple[Tensor, ...] = ()) -> Iterator[Child]:
    """What a tensor carries besides its gradient: attributes and hooks."""
    for name, value in tensor.__dict__.items():
        if type(value) not in ATOMS and not any(value is part for part in besides):
            yield attribute(name, value)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name)
        if hooks:
            yield attribute(name, hooks)


def _on_class(kind: type) -> Iterator[Fact]:
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if issubclass(type(value), Tensor):
                yield Fact("N021", f"{base.__name__}.{name} is a tensor on the class: it is out of reach and stays")


_META = Fact("R030", "a meta tensor has no bytes to move", "materialise it first: load the weights, or to_empty()")
_GRAPH_INSIDE = Fact(
    "R032",
    "is the result of a computation whose graph is alive",
    "detach it: module.name = module.name.detach()",
)
_GRAPH_OVER = Fact(
    "R033",
    "a forward pass has used it and its graph can still run backward",
    "call backward() first, or drop the loss and outputs (del loss)",
)
