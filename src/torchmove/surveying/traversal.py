"""What hangs on tensors, besides gradients, and on the classes of holders, where no move can reach it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress, count, repeat
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from torchmove.devices import remembered_device
from torchmove.internals.graphs import UNTOLD, graph_of, may_have_gradient
from torchmove.internals.metadata import AT_ONCE, PLAIN, Looks, look_all, look_at_any
from torchmove.internals.stored import ATOMS, LruCache, stored_dict
from torchmove.surveying.children import Bunch, Child, Fact, Level, Owner, Reader, Role, States, attribute, make_child
from torchmove.surveying.composites import Unmovable, is_window, parts_of
from torchmove.surveying.helpers import places_of
from torchmove.surveying.inventory import Also, DeviceValue, Shell, Told
from torchmove.surveying.paths import KEYED, MEMBER, NOWHERE, Path, make_path
from torchmove.surveying.readers import reader_for
from torchmove.surveying.readers.outside import read_data, why_data
from torchmove.surveying.tensors import GradientsOf, Origins, Run, StateOfEach, make_several


def hung_on(tensor: Tensor, besides: tuple[Tensor, ...] = ()) -> Iterator[Child]:
    """What a tensor carries besides its gradient: attributes and hooks."""
    for name, value in tensor.__dict__.items():
        if type(value) not in ATOMS and not any(value is part for part in besides):
            yield attribute(name, value)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name)
        if hooks:
            yield attribute(name, hooks)


def on_class(holder: Any) -> Iterator[Fact]:
    """What its class holds. An attribute of the object's own hides that of its class."""
    own = stored_dict(holder) or {}
    for base in type(holder).__mro__:
        kinds = {id(kind): kind for kind in map(type, vars(base).values())}  # a few, of dozens of values
        if not any(issubclass(kind, (Tensor, LruCache)) for kind in kinds.values()):
            continue
        for name, value in vars(base).items():
            if issubclass(type(value), Tensor) and name not in own:
                yield Fact("N021", f"{base.__name__}.{name} is a tensor on the class: it is out of reach and stays")
            elif type(value) is LruCache and value.cache_info().currsize:
                yield Fact("N033", f"{base.__name__}.{name} is an lru_cache on the class: clear it, its entries stay")


class Finds:
    """So far. The rest of a walk adds to them, one at a time or many."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # every one, in the order in which they were found
        self.origins = Origins()
        self.seen: dict[int, int] = {}  # which of them it is, by its id
        self.also: list[Also] = []

    def find(self, tensor: Tensor, before: Path | None, how: str, what: Any, role: Role, owner: Owner | None) -> None:
        me = id(tensor)
        if me in self.seen:
            self.also.append(Also((me,), before, how, (what,)))
        else:
            self.seen[me] = len(self.tensors)
            self.tensors.append(tensor)
            self.origins.add(make_several((before, how, (what,), role, owner)), 1)

    def all_new(self, values: list[Tensor], run: Run) -> bool:
        """If these are tensors that were not found yet, they are now."""
        ids = list(map(id, values))
        if not set(map(type, values)) <= PLAIN or len({*ids}) < len(ids) or not self.seen.keys().isdisjoint(ids):
            return False
        self.seen.update(zip(ids, count(len(self.tensors))))
        self.tensors += values
        self.origins.add(run, len(values))
        return True

    def all_known(self, bunch: Bunch, before: Path) -> bool:
        """If these are tensors that were all found before, they are noted; such are the parameters of an optimizer."""
        ids = list(map(id, bunch.entries.values()))
        if not all(map(self.seen.__contains__, ids)):
            return False
        self.also.append(Also(ids, before, bunch.how, list(bunch.entries)))
        return True


class _Stair(NamedTuple):
    """Where the walk stands in one holder: what is left to visit there, and what its children inherit."""

    children: Iterator[Child | Bunch | States | Fact]
    path: Path
    holder: Any
    role: Role | None
    owner: Owner | None


class Walk(Finds):
    """One survey under way. Walks with a stack of its own: a state may be deeper than Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[int] = []  # which of them are windows on storages
        self.looks = Looks.none()  # what was read of the windows
        self.wholes: list[int] = []
        self.trained: list[int] = []  # those that require a gradient
        self.results: list[int] = []  # those that are the result of a computation and have its graph
        self.shells: list[Shell] = []
        self.told: list[Told] = []
        self.device_values: list[DeviceValue] = []
        self.holders: dict[int, tuple[Any, Path]] = {}  # every holder seen; holding it keeps its id its own
        self.readers: dict[type, Reader] = {}
        self.stack: list[_Stair] = []

    # ------------------------------------------------------------ through the holders

    def enter(self, path: Path, value: Any) -> None:
        """Walk a given object."""
        kind = type(value)
        if issubclass(kind, Tensor):
            self.find(value, *path, "tensor", None)
        elif kind not in ATOMS and kind is not torch.device:
            self.open(value, path, None, None)
            self.climb()

    def climb(self) -> None:
        """Walk what is on the stack, the first child first."""
        stack = self.stack
        while stack:
            stair = stack[-1]
            for child in stair.children:
                if self.visit_kind.get(type(child), Walk.refuse)(self, child, stair):
                    break  # a new stair is on the stack; this one goes on after it
            else:
                stack.pop()

    def refuse(self, child: Any, stair: _Stair) -> bool:
        said = "a reader yields tm.attribute(...) and tm.item(...)"
        raise TypeError(f"{stair.path}: {said}, and this one a {type(child).__name__}")

    def visit_fact(self, fact: Fact, stair: _Stair) -> bool:
        self.told.append(Told(stair.path, stair.holder, fact))
        return False

    def visit_states(self, states: States, stair: _Stair) -> bool:
        """See to all that an optimizer keeps. True: it has to be seen to bunch by bunch, which comes next."""
        parameters, kept = list(map(id, states.entries)), list(states.entries.values())
        if not all(map(self.seen.__contains__, parameters)):
            self.find_keys(states.entries, stair.path)
        if set(map(type, kept)) <= {dict}:
            owners = chain.from_iterable(map(repeat, count(), map(len, kept)))
            run = StateOfEach(
                before=stair.path,
                optimizer=states.optimizer,
                parameters=parameters,
                places=list(map(self.seen.get, parameters)),
                groups=states.groups(),
                owners=list(owners),
                keys=list(chain.from_iterable(kept)),
            )
            if self.all_new(list(chain.from_iterable(map(dict.values, kept))), run):
                return False
        self.stack.append(_make_stair((states.one_by_one(), stair.path, states.entries, None, None)))
        return True

    def find_keys(self, entries: Iterable[Any], path: Path) -> None:
        """The tensors that are keys of an optimizer's state and in none of its groups."""
        for index, key in enumerate(entries):
            if issubclass(type(key), Tensor) and id(key) not in self.seen:
                self.find(key, path, MEMBER, index, "parameter", None)

    def visit_bunch(self, bunch: Bunch, stair: _Stair) -> bool:
        inherits = stair.owner is not None and bunch.owner is None
        return self.see_bunch(bunch._replace(owner=stair.owner) if inherits else bunch, stair.path)

    def see_bunch(self, bunch: Bunch, before: Path) -> bool:
        """See to many children. True: some are holders, which come next."""
        how, entries, role, owner, at = bunch
        if at:
            before = self.step(before, *at)
        if len(entries) > _MANY and self.all_known(bunch, before):
            return False
        seen, tensors, keys, rest = self.seen, self.tensors, [], []
        for key, value in entries.items():
            kind = type(value)
            if kind in PLAIN or issubclass(kind, Tensor):
                # As find() does, but one run for all: most tensors of a state are found here.
                me = id(value)
                if me in seen:
                    self.also.append(Also((me,), before, how, (key,)))
                else:
                    seen[me] = len(tensors)
                    tensors.append(value)
                    keys.append(key)
            elif kind not in ATOMS:
                rest.append(make_child((how, key, value, role, owner)))
        if keys:
            self.origins.add(make_several((before, how, keys, role, owner)), len(keys))
        if rest:
            self.stack.append(_make_stair((iter(rest), before, entries, role, owner)))
        return bool(rest)

    def visit(self, child: Child, stair: _Stair) -> bool:
        """See to one child. True: it has children of its own, which come next."""
        how, what, value, role, owner = child
        kind = type(value)
        if role == "data":
            return self.leave_out(child, stair)
        if kind not in self.readers and not self.is_holder(kind, child, stair):
            return False
        if id(value) in self.holders:
            return False
        path = self.step(stair.path, how, what)
        # A level is made by a reader on the way and gone at once: its id is not its own.
        if kind is not Level:
            self.holders[id(value)] = (value, path)
        return self.open(value, path, role or stair.role, owner or stair.owner)

    def leave_out(self, child: Child, stair: _Stair) -> bool:
        if id(child.value) not in self.holders:  # nor is it given by itself
            path = self.step(stair.path, child.how, child.what)
            self.holders[id(child.value)] = (child.value, path)
            self.told.append(Told(path, child.value, Fact("N031", why_data(child.value))))
        return False

    def is_holder(self, kind: type, child: Child, stair: _Stair) -> bool:
        """If it is not, it is seen to."""
        how, what, value, role, owner = child
        if issubclass(kind, Tensor):
            before, how, what = self.step(stair.path, how, what)
            self.find(value, before, how, what, role or stair.role or "tensor", owner or stair.owner)
            return False
        if kind in ATOMS or kind is torch.device:
            if kind in _DEVICE_KINDS:
                self.note_device(child, stair)
            return False
        return True

    def step(self, before: Path, how: str, what: Any) -> Path:
        if how is KEYED:
            index = self.seen.get(id(what))
            what = NOWHERE if index is None else self.origins.of(index).path
        return make_path((before, how, what))

    def open(self, value: Any, path: Path, role: Role | None, owner: Owner | None) -> bool:
        """True: there is something in it, which comes next."""
        kind = type(value)
        reader = self.readers.get(kind)
        if reader is None:
            reader = self.readers[kind] = by_rules(reader_for(kind), places_of(kind))
            self.told += [Told(path, value, fact) for fact in on_class(value)]
        children = reader(value)
        if type(children) is Bunch:
            return self.see_bunch(children if owner is None else children._replace(owner=owner), path)
        self.stack.append(_make_stair((iter(children), path, value, role, owner)))
        return True

    def note_device(self, child: Child, stair: _Stair) -> None:
        if remembered_device(child.what, child.value, stair.path.what) is not None:
            path = Path(stair.path, child.how, child.what)
            holder = stair.holder.container if type(stair.holder) is Level else stair.holder
            self.device_values.append(DeviceValue(holder, child.how, child.what, child.value, path))

    # ------------------------------------------------------------ through what tensors carry

    def follow_tensors(self) -> None:
        done = 0
        while done < len(self.tensors):
            start, done = done, len(self.tensors)
            for first in range(start, done, AT_ONCE):
                self.follow(range(first, min(first + AT_ONCE, done)))
            self.climb()

    def follow(self, wave: Sequence[int]) -> None:
        tensors = self.tensors[wave[0] : wave[-1] + 1]
        looks = look_all(tensors) if set(map(type, tensors)) <= PLAIN else None
        if looks is None:
            wave = self.without_shells(wave)
            tensors = [self.tensors[index] for index in wave]
            looks = look_at_any(tensors)
        self.windows += wave
        self.looks.extend(looks)
        self.find_gradients(wave, tensors, looks.requires_grads)
        self.find_carried(wave, tensors)

    def without_shells(self, wave: Sequence[int]) -> list[int]:
        are_windows = [*map(is_window, [self.tensors[index] for index in wave])]
        shells = [index for index, is_so in zip(wave, are_windows, strict=True) if not is_so]
        moving = [index for index in shells if self.visit_shell(index)]
        around = [self.tensors[index] for index in moving]
        self.find_gradients(moving, around, [tensor.requires_grad for tensor in around])
        return [*compress(wave, are_windows)]

    def find_gradients(self, wave: Sequence[int], tensors: Sequence[Tensor], requires: Sequence[bool]) -> None:
        self.trained += (trained := [*compress(wave, requires)])
        graphs = [*map(graph_of, compress(tensors, requires))]
        if not _are_none(graphs):
            known = zip(trained, graphs, strict=True)
            self.results += [index for index, graph in known if graph not in (None, UNTOLD)]
            wave = [index for index in wave if may_have_gradient(self.tensors[index])]
            tensors = [self.tensors[index] for index in wave]
        gradients = [*map(_grad, tensors)]
        if not _are_none(gradients):
            found = zip(wave, gradients, strict=True)
            self.find_each([(index, gradient) for index, gradient in found if gradient is not None])

    def find_each(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        ids = [id(self.tensors[index]) for index, _ in gradients]
        run = GradientsOf([index for index, _ in gradients], ids)
        if not self.all_new([gradient for _, gradient in gradients], run):
            for at, (_, gradient) in enumerate(gradients):
                self.find(gradient, *run.origin(at, self.origins))

    def find_carried(self, wave: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """What hangs on tensors, attributes and hooks. Mostly nothing does, and the collector can tell at once."""
        if len(gc.get_referents(*tensors)) <= len(wave) * _BARE:
            return
        for index, tensor in zip(wave, tensors, strict=True):
            if tensor.__dict__ or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                self.push(index, hung_on(tensor))

    def push(self, index: int, children: Iterable[Child]) -> None:
        stair = (iter(children), self.origins.of(index).path, self.tensors[index], None, None)
        self.stack.append(_make_stair(stair))

    def visit_shell(self, index: int) -> bool:
        """True: it moves, or its parts do."""
        tensor = self.tensors[index]
        try:
            parts = parts_of(tensor)
        except Unmovable as error:
            fact = Fact("R031", str(error), "keep it, or move it by its own means before")
            self.told.append(Told(self.origins.of(index).path, tensor, fact))
            return False
        if parts is None:
            self.wholes.append(index)
            self.push(index, hung_on(tensor))
            return True
        inner = tuple([part.tensor for part in parts.parts])
        origin = self.origins.of(index)
        self.shells.append(Shell(tensor, origin.path, origin.role, origin.owner, inner, parts.rebuild))
        for part in parts.parts:
            self.find(part.tensor, origin.path, part.how, part.what, origin.role, origin.owner)
        carried = [*hung_on(tensor, besides=inner)]
        if carried:
            self.push(index, carried)
        return True

    visit_kind: ClassVar[dict[type, Callable[[Walk, Any, _Stair], bool]]] = {
        Child: visit,
        Bunch: visit_bunch,
        States: visit_states,
        Fact: visit_fact,
    }


def by_rules(reader: Reader, places: Mapping[str, Any]) -> Reader:
    """The reader of a class, with the role that its rules give to its attributes."""
    if not places:
        return reader

    def read(holder: Any) -> Iterator[Any]:
        found = reader(holder)
        children: Iterable[Any] = [found] if type(found) is Bunch else found
        for child in children:
            place = places.get(child.what, places.get("*")) if type(child) is Child else None
            place = place(holder) if callable(place) else place
            if place == "data" and _can_be_data(child.value):
                yield child._replace(role="data")
            else:
                yield child._replace(role="host") if place == "cpu" else child

    return read


def _can_be_data(value: Any) -> bool:
    """A module is none; and of those that are always data their readers tell."""
    kind = type(value)
    return kind not in ATOMS and not issubclass(kind, nn.Module) and reader_for(kind) is not read_data


def _are_none(values: Sequence[Any]) -> bool:
    """Told by their types: a tensor that is compared with None compares each of its elements."""
    return {*map(type, values)} <= {type(None)}


_MANY = 16
_DEVICE_KINDS = {torch.device, str, int}
# Like _Stair(...), from a tuple, and cheaper.
_make_stair = partial(tuple.__new__, _Stair)
_grad = attrgetter("grad")
# What the collector sees behind a tensor that carries nothing: its type.
_BARE = len(gc.get_referents(torch.empty(0, device="cpu")))
