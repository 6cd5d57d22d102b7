"""The traversal of a state: from holder to holder, by the readers, to every tensor.

It goes in waves: through the holders, then through the gradients, hooks and attributes of the tensors found on the way,
and so on. It only collects the tensors; their metadata is read in columns, many at a time, which is faster.
"""

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
from torchmove.internals.metadata import AT_ONCE, PLAIN, Metadata, read_metadata, read_metadata_of_any
from torchmove.internals.stored import ATOMS, LruCache, stored_dict
from torchmove.surveying.children import (
    Child,
    Children,
    Diagnostic,
    Inner,
    Owner,
    ParameterStates,
    Reader,
    Role,
    attribute,
    make_child,
)
from torchmove.surveying.composites import Unmovable, decompose, is_view_of_storage
from torchmove.surveying.helpers import places_of
from torchmove.surveying.inventory import (
    Composite,
    FoundDiagnostic,
    GradientRun,
    Origins,
    OtherPaths,
    RememberedDevice,
    StateRun,
    TensorRun,
    make_child_run,
)
from torchmove.surveying.paths import KEYED, MEMBER, NOWHERE, Path, make_path
from torchmove.surveying.readers import reader_for
from torchmove.surveying.readers.outside import read_data, why_data


def attached_to(tensor: Tensor, besides: tuple[Tensor, ...] = ()) -> Iterator[Child]:
    """What is attached to a tensor besides its gradient: attributes and hooks."""
    for name, value in tensor.__dict__.items():
        if type(value) not in ATOMS and not any(value is part for part in besides):
            yield attribute(name, value)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name)
        if hooks:
            yield attribute(name, hooks)


def on_class(holder: Any) -> Iterator[Diagnostic]:
    """Tensors and caches on the class of a holder, which a move cannot reach."""
    own = stored_dict(holder) or {}
    for base in type(holder).__mro__:
        kinds = {id(kind): kind for kind in map(type, vars(base).values())}  # few distinct types
        if not any(issubclass(kind, (Tensor, LruCache)) for kind in kinds.values()):
            continue
        for name, value in vars(base).items():
            if issubclass(type(value), Tensor) and name not in own:
                yield Diagnostic(
                    "N021", f"{base.__name__}.{name} is a tensor on the class: it cannot be moved and stays"
                )
            elif type(value) is LruCache and value.cache_info().currsize:
                yield Diagnostic(
                    "N033", f"{base.__name__}.{name} is an lru_cache on the class: its entries stay unless you clear it"
                )


class FoundTensors:
    """The tensors found so far, and the paths to them."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # in the order in which they were found
        self.origins = Origins()
        self.seen: dict[int, int] = {}  # the index of a tensor, by its id
        self.further_paths: list[OtherPaths] = []

    def find(self, tensor: Tensor, before: Path | None, how: str, what: Any, role: Role, owner: Owner | None) -> None:
        tensor_id = id(tensor)
        if tensor_id in self.seen:
            self.further_paths.append(OtherPaths((tensor_id,), before, how, (what,)))
        else:
            self.seen[tensor_id] = len(self.tensors)
            self.tensors.append(tensor)
            self.origins.add(make_child_run((before, how, (what,), role, owner)), 1)

    def all_new(self, values: list[Tensor], run: TensorRun) -> bool:
        """Add these tensors, unless some were found before or are not plain tensors; then return False."""
        ids = list(map(id, values))
        if not set(map(type, values)) <= PLAIN or len({*ids}) < len(ids) or not self.seen.keys().isdisjoint(ids):
            return False
        self.seen.update(zip(ids, count(len(self.tensors))))
        self.tensors += values
        self.origins.add(run, len(values))
        return True

    def all_known(self, children: Children, before: Path) -> bool:
        """Record further paths if all were found before, as an optimizer's parameters mostly are; else return False."""
        ids = list(map(id, children.entries.values()))
        if not all(map(self.seen.__contains__, ids)):
            return False
        self.further_paths.append(OtherPaths(ids, before, children.how, list(children.entries)))
        return True


class _Frame(NamedTuple):
    """One level of the traversal: the holder, its children still to visit, and what they inherit."""

    children: Iterator[Child | Children | ParameterStates | Diagnostic]
    path: Path
    holder: Any
    role: Role | None
    owner: Owner | None


class Traversal(FoundTensors):
    """One survey in progress. It has an explicit stack: a state may be nested deeper than Python's stack allows."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[int] = []  # the indices of views of storages
        self.metadata = Metadata.none()  # the metadata of those
        self.wholes: list[int] = []  # the indices of tensors that are copied as a whole
        self.trained: list[int] = []  # the indices of tensors that require a gradient
        self.results: list[int] = []  # the indices of results of computations, with their graphs
        self.composites: list[Composite] = []
        self.diagnostics: list[FoundDiagnostic] = []
        self.device_values: list[RememberedDevice] = []
        self.holders: dict[int, tuple[Any, Path]] = {}  # every holder visited; holding it keeps its id valid
        self.readers: dict[type, Reader] = {}
        self.stack: list[_Frame] = []

    # ------------------------------------------------------------ holders

    def enter(self, path: Path, value: Any) -> None:
        """Search a given object."""
        kind = type(value)
        if issubclass(kind, Tensor):
            self.find(value, *path, "tensor", None)
        elif kind not in ATOMS and kind is not torch.device:
            self.open(value, path, None, None)
            self.drain()

    def drain(self) -> None:
        """Visit everything on the stack, the first child first."""
        stack = self.stack
        while stack:
            frame = stack[-1]
            for child in frame.children:
                if self.visit_kind.get(type(child), Traversal.refuse)(self, child, frame):
                    break  # a new frame is on the stack; this one continues after it
            else:
                stack.pop()

    def refuse(self, child: Any, frame: _Frame) -> bool:
        kind = type(child).__name__
        raise TypeError(f"the reader of {frame.path} yielded a {kind}. Fix: yield tm.attribute(...) or tm.item(...)")

    def visit_diagnostic(self, diagnostic: Diagnostic, frame: _Frame) -> bool:
        self.diagnostics.append(FoundDiagnostic(frame.path, frame.holder, diagnostic))
        return False

    def visit_parameter_states(self, states: ParameterStates, frame: _Frame) -> bool:
        """Visit the state of an optimizer. True: it is visited parameter by parameter next."""
        parameters, kept = list(map(id, states.entries)), list(states.entries.values())
        if not all(map(self.seen.__contains__, parameters)):
            self.find_keys(states.entries, frame.path)
        if set(map(type, kept)) <= {dict}:
            owners = chain.from_iterable(map(repeat, count(), map(len, kept)))
            run = StateRun(
                before=frame.path,
                optimizer=states.optimizer,
                parameters=parameters,
                places=list(map(self.seen.get, parameters)),
                groups=states.groups(),
                owners=list(owners),
                keys=list(chain.from_iterable(kept)),
            )
            if self.all_new(list(chain.from_iterable(map(dict.values, kept))), run):
                return False
        self.stack.append(_make_frame((states.one_by_one(), frame.path, states.entries, None, None)))
        return True

    def find_keys(self, entries: Iterable[Any], path: Path) -> None:
        """Find tensors that are keys of an optimizer's state and in none of its groups."""
        for index, key in enumerate(entries):
            if issubclass(type(key), Tensor) and id(key) not in self.seen:
                self.find(key, path, MEMBER, index, "parameter", None)

    def visit_children(self, children: Children, frame: _Frame) -> bool:
        inherits = frame.owner is not None and children.owner is None
        return self.see_children(children._replace(owner=frame.owner) if inherits else children, frame.path)

    def see_children(self, children: Children, before: Path) -> bool:
        """Visit many children. True: some are holders, which are visited next."""
        how, entries, role, owner, at = children
        if at:
            before = self.step(before, *at)
        if len(entries) > _MANY_CHILDREN and self.all_known(children, before):
            return False
        seen, tensors, keys, rest = self.seen, self.tensors, [], []
        for key, value in entries.items():
            kind = type(value)
            if kind in PLAIN or issubclass(kind, Tensor):
                # As find() does, but with one run for all: most tensors of a state are found here.
                tensor_id = id(value)
                if tensor_id in seen:
                    self.further_paths.append(OtherPaths((tensor_id,), before, how, (key,)))
                else:
                    seen[tensor_id] = len(tensors)
                    tensors.append(value)
                    keys.append(key)
            elif kind not in ATOMS:
                rest.append(make_child((how, key, value, role, owner)))
        if keys:
            self.origins.add(make_child_run((before, how, keys, role, owner)), len(keys))
        if rest:
            self.stack.append(_make_frame((iter(rest), before, entries, role, owner)))
        return bool(rest)

    def visit(self, child: Child, frame: _Frame) -> bool:
        """Visit one child. True: it has children of its own, which are visited next."""
        how, what, value, role, owner = child
        kind = type(value)
        if role == "data":
            return self.leave_out(child, frame)
        if kind not in self.readers and not self.is_holder(kind, child, frame):
            return False
        if id(value) in self.holders:
            return False
        path = self.step(frame.path, how, what)
        # A reader makes an Inner for this visit only, so its id is not kept.
        if kind is not Inner:
            self.holders[id(value)] = (value, path)
        return self.open(value, path, role or frame.role, owner or frame.owner)

    def leave_out(self, child: Child, frame: _Frame) -> bool:
        if id(child.value) not in self.holders:  # it may be a given object itself
            path = self.step(frame.path, child.how, child.what)
            self.holders[id(child.value)] = (child.value, path)
            self.diagnostics.append(FoundDiagnostic(path, child.value, Diagnostic("N031", why_data(child.value))))
        return False

    def is_holder(self, kind: type, child: Child, frame: _Frame) -> bool:
        """Whether the child is a holder. If not, this handles it."""
        how, what, value, role, owner = child
        if issubclass(kind, Tensor):
            before, how, what = self.step(frame.path, how, what)
            self.find(value, before, how, what, role or frame.role or "tensor", owner or frame.owner)
            return False
        if kind in ATOMS or kind is torch.device:
            if kind in _DEVICE_KINDS:
                self.note_device(child, frame)
            return False
        return True

    def step(self, before: Path, how: str, what: Any) -> Path:
        if how is KEYED:
            index = self.seen.get(id(what))
            what = NOWHERE if index is None else self.origins.of(index).path
        return make_path((before, how, what))

    def open(self, value: Any, path: Path, role: Role | None, owner: Owner | None) -> bool:
        """Read a holder. True: it has children, which are visited next."""
        kind = type(value)
        reader = self.readers.get(kind)
        if reader is None:
            reader = self.readers[kind] = by_rules(reader_for(kind), places_of(kind))
            self.diagnostics += [FoundDiagnostic(path, value, diagnostic) for diagnostic in on_class(value)]
        children = reader(value)
        if type(children) is Children:
            return self.see_children(children if owner is None else children._replace(owner=owner), path)
        self.stack.append(_make_frame((iter(children), path, value, role, owner)))
        return True

    def note_device(self, child: Child, frame: _Frame) -> None:
        if remembered_device(child.what, child.value, frame.path.what) is not None:
            path = Path(frame.path, child.how, child.what)
            holder = frame.holder.container if type(frame.holder) is Inner else frame.holder
            self.device_values.append(RememberedDevice(holder, child.how, child.what, child.value, path))

    # ------------------------------------------------------------ what is attached to tensors

    def follow_tensors(self) -> None:
        done = 0
        while done < len(self.tensors):
            start, done = done, len(self.tensors)
            for first in range(start, done, AT_ONCE):
                self.follow(range(first, min(first + AT_ONCE, done)))
            self.drain()

    def follow(self, batch: Sequence[int]) -> None:
        tensors = self.tensors[batch[0] : batch[-1] + 1]
        metadata = read_metadata(tensors) if set(map(type, tensors)) <= PLAIN else None
        if metadata is None:
            batch = self.without_composites(batch)
            tensors = [self.tensors[index] for index in batch]
            metadata = read_metadata_of_any(tensors)
        self.views += batch
        self.metadata.extend(metadata)
        self.find_gradients(batch, tensors, metadata.requires_grads)
        self.find_attached(batch, tensors)

    def without_composites(self, batch: Sequence[int]) -> list[int]:
        are_views = [*map(is_view_of_storage, [self.tensors[index] for index in batch])]
        composites = [index for index, is_so in zip(batch, are_views, strict=True) if not is_so]
        moving = [index for index in composites if self.visit_composite(index)]
        around = [self.tensors[index] for index in moving]
        self.find_gradients(moving, around, [tensor.requires_grad for tensor in around])
        return [*compress(batch, are_views)]

    def find_gradients(self, batch: Sequence[int], tensors: Sequence[Tensor], requires: Sequence[bool]) -> None:
        self.trained += (trained := [*compress(batch, requires)])
        graphs = [*map(graph_of, compress(tensors, requires))]
        if not _are_none(graphs):
            known = zip(trained, graphs, strict=True)
            self.results += [index for index, graph in known if graph not in (None, UNTOLD)]
            batch = [index for index in batch if may_have_gradient(self.tensors[index])]
            tensors = [self.tensors[index] for index in batch]
        gradients = [*map(_grad, tensors)]
        if not _are_none(gradients):
            found = zip(batch, gradients, strict=True)
            self.find_each([(index, gradient) for index, gradient in found if gradient is not None])

    def find_each(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        ids = [id(self.tensors[index]) for index, _ in gradients]
        run = GradientRun([index for index, _ in gradients], ids)
        if not self.all_new([gradient for _, gradient in gradients], run):
            for at, (_, gradient) in enumerate(gradients):
                self.find(gradient, *run.origin(at, self.origins))

    def find_attached(self, batch: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Find attributes and hooks of tensors. Mostly there are none, which the collector shows in one call."""
        if len(gc.get_referents(*tensors)) <= len(batch) * _BARE:
            return
        for index, tensor in zip(batch, tensors, strict=True):
            if tensor.__dict__ or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                self.push(index, attached_to(tensor))

    def push(self, index: int, children: Iterable[Child]) -> None:
        frame = (iter(children), self.origins.of(index).path, self.tensors[index], None, None)
        self.stack.append(_make_frame(frame))

    def visit_composite(self, index: int) -> bool:
        """True: the tensor moves, as a whole or by its parts."""
        tensor = self.tensors[index]
        try:
            parts = decompose(tensor)
        except Unmovable as error:
            diagnostic = Diagnostic("R031", str(error), "keep= it, or move it with its own methods first")
            self.diagnostics.append(FoundDiagnostic(self.origins.of(index).path, tensor, diagnostic))
            return False
        if parts is None:
            self.wholes.append(index)
            self.push(index, attached_to(tensor))
            return True
        inner = tuple([part.tensor for part in parts.parts])
        origin = self.origins.of(index)
        self.composites.append(Composite(tensor, origin.path, origin.role, origin.owner, inner, parts.rebuild))
        for part in parts.parts:
            self.find(part.tensor, origin.path, part.how, part.what, origin.role, origin.owner)
        attached = [*attached_to(tensor, besides=inner)]
        if attached:
            self.push(index, attached)
        return True

    visit_kind: ClassVar[dict[type, Callable[[Traversal, Any, _Frame], bool]]] = {
        Child: visit,
        Children: visit_children,
        ParameterStates: visit_parameter_states,
        Diagnostic: visit_diagnostic,
    }


def by_rules(reader: Reader, places: Mapping[str, Any]) -> Reader:
    """The reader of a class, with the roles that its rules give to its attributes."""
    if not places:
        return reader

    def read(holder: Any) -> Iterator[Any]:
        found = reader(holder)
        children: Iterable[Any] = [found] if type(found) is Children else found
        for child in children:
            place = places.get(child.what, places.get("*")) if type(child) is Child else None
            place = place(holder) if callable(place) else place
            if place == "data" and _can_be_data(child.value):
                yield child._replace(role="data")
            else:
                yield child._replace(role="host") if place == "cpu" else child

    return read


def _can_be_data(value: Any) -> bool:
    """Whether a rule may make this data: not a module, nor a class that always is data."""
    kind = type(value)
    return kind not in ATOMS and not issubclass(kind, nn.Module) and reader_for(kind) is not read_data


def _are_none(values: Sequence[Any]) -> bool:
    """Whether all are None. By type: comparing a tensor with None compares each of its elements."""
    return {*map(type, values)} <= {type(None)}


_MANY_CHILDREN = 16
_DEVICE_KINDS = {torch.device, str, int}
# Like _Frame(...), but from a tuple, which is cheaper.
_make_frame = partial(tuple.__new__, _Frame)
_grad = attrgetter("grad")
# What the collector finds in a tensor with nothing attached: its type.
_BARE = len(gc.get_referents(torch.empty(0, device="cpu")))
