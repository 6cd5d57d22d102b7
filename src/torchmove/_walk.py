"""The walk through a state, with the readers, from holder to holder, to every tensor.

It goes in waves: first through the holders, then through what the tensors found on the way carry, and so on. It only
collects the tensors; they are read all together, in columns, which is the quicker way.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, islice
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove import _devices, _paths
from torchmove._paths import Path, make_path
from torchmove._records import (
    Bunch,
    Child,
    DeviceValue,
    Fact,
    Level,
    Owner,
    Reader,
    Role,
    Shell,
    Told,
    attribute,
    make_child,
    make_owner,
)
from torchmove._shells import PLAIN, Unmovable, all_windows, is_window, parts_of
from torchmove._storage import AT_ONCE, Looks, look_all
from torchmove._stored import ATOMS
from torchmove.readers import reader_for

# A tensor that the walk came across, as the first fields of its slot: tensor, before, how, what, role, owner.
Found = tuple[Tensor, Path | None, str, Any, Role, Owner | None]


def path_of(found: Found) -> Path:
    return make_path(found[1:4])


class _Stair(NamedTuple):
    """Where the walk stands in one holder: what is left to visit there, and what its children inherit."""

    children: Iterator[Child | Bunch | Fact]
    path: Path
    holder: Any
    role: Role | None
    owner: Owner | None


class Walk:
    """One survey under way. Walks with a stack of its own: a state may be deeper than Python's."""

    def __init__(self) -> None:
        self.seen: dict[int, Found] = {}  # every tensor, by its id, as found first
        self.also: list[tuple[int, Path | None, str, Any]] = []  # its id, and a further path that leads to it
        self.windows: list[Found] = []
        self.looks = Looks([], [], [], [])  # what was read of the windows
        self.wholes: list[Found] = []
        self.trained: list[Found] = []  # those that require a gradient
        self.results: list[Found] = []  # those that are the result of a computation and have its graph
        self.shells: list[Shell] = []
        self.told: list[Told] = []
        self.device_values: list[DeviceValue] = []
        self.holders: dict[int, tuple[Any, Path]] = {}  # every holder seen; holding it keeps its id its own
        self.readers: dict[type, Reader] = {}
        self.stack: list[_Stair] = []

    # ------------------------------------------------------------ through the holders

    def enter(self, path: Path, value: Any) -> None:
        """Walk a given object."""
        if issubclass(type(value), Tensor):
            self.find(value, *path, "tensor", None)
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
        seen, also, rest = self.seen, self.also, []
        for key, value in entries.items():
            kind = type(value)
            if kind in PLAIN or issubclass(kind, Tensor):
                # As find() does, without the call: most tensors of a state are found here.
                me = id(value)
                if me in seen:
                    also.append((me, before, how, key))
                else:
                    seen[me] = (value, before, how, key, role, owner)
            elif kind not in ATOMS:
                rest.append(make_child((how, key, value, role, owner)))
        if rest:
            self.stack.append(_make_stair((iter(rest), before, entries, role, owner)))
        return bool(rest)

    def visit(self, child: Child, stair: _Stair) -> bool:
        """See to one child. True: it has children of its own, which come next."""
        how, what, value, role, owner = child
        kind = type(value)
        if issubclass(kind, Tensor):
            before, how, what = self.step(stair.path, how, what)
            self.find(value, before, how, what, role or stair.role or "tensor", owner or stair.owner)
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
            found = self.seen.get(id(what))
            what = path_of(found) if found else _NOWHERE
        return make_path((before, how, what))

    def open(self, value: Any, path: Path, role: Role | None, owner: Owner | None) -> None:
        kind = type(value)
        reader = self.readers.get(kind)
        if reader is None:
            reader = self.readers[kind] = reader_for(kind)
            self.told += [Told(path, value, fact) for fact in _on_class(kind)]
        self.stack.append(_make_stair((iter(reader(value)), path, value, role, owner)))

    def find(self, tensor: Tensor, before: Path | None, how: str, what: Any, role: Role, owner: Owner | None) -> None:
        me = id(tensor)
        if me in self.seen:
            self.also.append((me, before, how, what))
        else:
            self.seen[me] = (tensor, before, how, what, role, owner)

    def note_device(self, child: Child, stair: _Stair) -> None:
        if _devices.remembered(child.what, child.value) is not None:
            path = Path(stair.path, child.how, child.what)
            holder = stair.holder.container if type(stair.holder) is Level else stair.holder
            self.device_values.append(DeviceValue(holder, child.how, child.what, child.value, path))

    # ------------------------------------------------------------ through what tensors carry

    def follow_tensors(self) -> None:
        done = 0
        while done < len(self.seen):
            wave = list(islice(self.seen.values(), done, None))
            done = len(self.seen)
            for start in range(0, len(wave), AT_ONCE):
                self.follow(wave[start : start + AT_ONCE])
            self.climb()

    def follow(self, found: list[Found]) -> None:
        tensors = [each[0] for each in found]
        if not all_windows(tensors):
            found = [*self.without_shells(found)]
            # A class of its own may answer otherwise: an uninitialised parameter refuses to tell its shape.
            tensors = [tensor if type(tensor) in PLAIN else tensor.data for tensor, *_ in found]
        self.windows += found
        self.looks.extend(look_all(tensors))
        self.find_gradients(found)
        self.find_carried(found)

    def without_shells(self, wave: Iterable[Found]) -> Iterator[Found]:
        for found in wave:
            if is_window(found[0]):
                yield found
            else:
                self.visit_shell(found)

    def find_gradients(self, wave: Sequence[Found]) -> None:
        tensors = [found[0] for found in wave]
        trained = [*compress(wave, map(_requires_grad, tensors))]
        self.trained += trained
        results = [found for found in trained if found[0].grad_fn is not None]
        if results:
            self.results += results
            # Asking the result of a computation for its gradient is answered with a warning.
            wave = [found for found in wave if found[0].grad_fn is None]
            tensors = [found[0] for found in wave]
        for found, gradient in zip(wave, map(_grad, tensors), strict=True):
            if gradient is not None:
                owner = make_owner((Tensor, _NO_GROUP, found[0]))
                self.find(gradient, path_of(found), _paths.ATTRIBUTE, "grad", "gradient", owner)

    def find_carried(self, wave: Sequence[Found]) -> None:
        """What hangs on tensors, attributes and hooks. Mostly nothing does, and the collector can tell at once."""
        if len(gc.get_referents(*[found[0] for found in wave])) <= len(wave) * _BARE:
            return
        for found in wave:
            tensor = found[0]
            if tensor.__dict__ or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                self.push(found, _hung_on(tensor))

    def push(self, found: Found, children: Iterable[Child]) -> None:
        self.stack.append(_make_stair((iter(children), path_of(found), found[0], None, None)))

    def visit_shell(self, found: Found) -> None:
        tensor, _, _, _, role, owner = found
        try:
            parts = parts_of(tensor)
        except Unmovable as error:
            self.tell(found, Fact("R031", str(error), "keep it, or move it by its own means before"))
            return
        self.find_gradients([found])
        if parts is None:
            self.wholes.append(found)
            self.push(found, _hung_on(tensor))
            return
        inner = tuple(part.tensor for part in parts.parts)
        self.shells.append(Shell(tensor, path_of(found), role, owner, inner, parts.rebuild))
        inside = [Child(part.how, part.what, part.tensor, role, owner) for part in parts.parts]
        self.push(found, [*inside, *_hung_on(tensor, besides=inner)])

    def tell(self, found: Found, fact: Fact) -> None:
        self.told.append(Told(path_of(found), found[0], fact))


_NO_GROUP: dict[str, Any] = {}
_NOWHERE = _paths.root("...")
# Like _Stair(...), from a tuple, and cheaper.
_make_stair = partial(tuple.__new__, _Stair)
_requires_grad, _grad = attrgetter("requires_grad"), attrgetter("grad")
# What the collector sees behind a tensor that carries nothing: its type.
_BARE = len(gc.get_referents(torch.empty(0, device="cpu")))


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
            elif type(value) is functools._lru_cache_wrapper and value.cache_info().currsize:
                yield Fact("N033", f"{base.__name__}.{name} is an lru_cache on the class: clear it, its entries stay")
