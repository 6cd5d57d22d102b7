"""Survey some objects: from holder to holder, by the readers, to every tensor; the result is an Inventory.

The traversal goes in waves: through the holders, then through the gradients, hooks and attributes of the tensors found
on the way, and so on. It only collects the tensors; their metadata is read in columns, many at a time, which is faster.
Then the tensors are grouped by storage.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress, count, repeat
from operator import attrgetter, ne
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmove.devices import remembered_device
from torchmove.internals.graphs import UNTOLD, graph_of, in_live_graphs, may_have_gradient, with_spent_graphs
from torchmove.internals.guards import plain_torch, without_collector
from torchmove.internals.storages import (
    AT_ONCE,
    PLAIN,
    Metadata,
    SharedRange,
    is_view_of_storage,
    reached,
    read_metadata,
    read_metadata_of_any,
    read_metadata_of_wholes,
    shared_ranges,
    view_of,
)
from torchmove.internals.stored import ATOMS, LruCache, is_frozen, stored_dict
from torchmove.surveying.composites import Unmovable, decompose
from torchmove.surveying.inventory import (
    Composite,
    FoundDiagnostic,
    GradientRun,
    Inventory,
    Origins,
    OtherPaths,
    RememberedDevice,
    StateRun,
    StateStorage,
    StateStorages,
    StateTensors,
    TensorRun,
    make_child_run,
)
from torchmove.surveying.paths import (
    ATTRIBUTE,
    ITEM,
    KEYED,
    MEMBER,
    NOWHERE,
    Child,
    Children,
    Diagnostic,
    Inner,
    Owner,
    ParameterStates,
    Path,
    Reader,
    Role,
    make_child,
    make_path,
    root_path,
)
from torchmove.surveying.readers import reader_by_rules
from torchmove.surveying.readers.outside import why_data


def attached_to(tensor: Tensor, besides: tuple[Tensor, ...] = ()) -> Iterator[Child]:
    """What is attached to a tensor besides its gradient: attributes and hooks."""
    for name, value in tensor.__dict__.items():
        if type(value) not in ATOMS and not any(value is part for part in besides):
            yield Child(ATTRIBUTE, name, value)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(tensor, name)
        if hooks:
            yield Child(ATTRIBUTE, name, hooks)


def on_class(holder: Any) -> Iterator[Diagnostic]:
    """Tensors and caches on the class of a holder, which a move cannot reach."""
    for base in type(holder).__mro__:
        kinds = {id(kind): kind for kind in map(type, vars(base).values())}  # few distinct types
        if not any(issubclass(kind, (Tensor, LruCache)) for kind in kinds.values()):
            continue
        own = stored_dict(holder) or {}
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
        raise TypeError(f"the reader of {frame.path} yielded {kind}. Fix: yield tm.attribute(...) or tm.item(...)")

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
            reader = self.readers[kind] = reader_by_rules(kind)
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


@plain_torch
@without_collector
def survey_objects(objects: Mapping[str, Any], *, besides: Sequence[Any] = ()) -> Inventory:
    """The inventory of some objects, each under the name that its paths start with.

    Objects in `besides` are not searched.
    """
    traversal = Traversal()
    traversal.holders.update((id(each), (each, NOWHERE)) for each in besides)
    roots = [(root_path(name), value) for name, value in _modules_first(objects)]
    # A given object gets its own name as its path, also where another given object holds it.
    traversal.holders.update((id(value), (value, path)) for path, value in roots)
    for path, value in roots:
        traversal.enter(path, value)
    traversal.follow_tensors()
    for each in besides:
        traversal.holders.pop(id(each), None)
    return _inventory(objects, traversal)


def _modules_first(objects: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort the modules first, so that a parameter gets its path from its model and not from the optimizer."""

    def rank(entry: tuple[str, Any]) -> int:
        kind = type(entry[1])
        return 0 if issubclass(kind, nn.Module) else 1 if issubclass(kind, Optimizer) else 2

    return sorted(objects.items(), key=rank)


def _inventory(objects: Mapping[str, Any], traversal: Traversal) -> Inventory:
    entries = _tensors(traversal)
    places = shared_ranges(entries.objects, entries.metadata)
    storages = _storages(entries, places)
    in_order = len(traversal.views) == len(traversal.tensors)
    number = traversal.seen if in_order else dict(zip(map(id, entries.objects), count()))
    spent = _spent(traversal)
    spent_ids = [id(traversal.tensors[index]) for index in spent]
    return Inventory(
        objects=tuple(objects.values()),
        roots=tuple(objects),
        tensors=entries,
        storages=storages,
        composites=tuple(traversal.composites),
        device_values=tuple(traversal.device_values),
        diagnostics=(
            *traversal.diagnostics,
            *_diagnostics(entries, traversal, spent),
            *_storage_diagnostics(entries, storages, places),
        ),
        further_paths=tuple(traversal.further_paths),
        holders=traversal.holders,
        number=number,
        spent=frozenset(number[each] for each in spent_ids if each in number),
    )


def _tensors(traversal: Traversal) -> StateTensors:
    if len(traversal.views) == len(traversal.tensors):
        return StateTensors(traversal.tensors, traversal.metadata, traversal.origins, range(len(traversal.tensors)))
    traversal.metadata.extend(read_metadata_of_wholes([traversal.tensors[index] for index in traversal.wholes]))
    order = [*traversal.views, *traversal.wholes]
    return StateTensors([traversal.tensors[index] for index in order], traversal.metadata, traversal.origins, order)


def _storages(entries: StateTensors, places: Mapping[int, SharedRange]) -> StateStorages:
    """The tensors by storage. Nearly always a storage has one tensor, which covers all of it."""
    _, tensor_bytes, storages, sizes = entries.metadata[:4]
    if places:
        found = [places.get(storage) for storage in storages]
        sizes = [place.nbytes if place else size for place, size in zip(found, sizes, strict=True)]
        storages = [place.memory if place else storage for place, storage in zip(found, storages, strict=True)]
    alone = len({*storages}) == len(storages)
    if alone and tensor_bytes == sizes:
        return StateStorages(entries.metadata, range(len(entries)), {})
    first_of = dict(zip(reversed(storages), range(len(entries) - 1, -1, -1), strict=True))
    shared = {} if alone else _sharing(storages, first_of)
    in_part = compress(count(), map(ne, tensor_bytes, sizes))
    special = {}
    for first in {first_of[storages[index]] for index in in_part} | shared.keys():
        special[first] = _storage(entries, shared.get(first, (first,)), sizes[first], places)
    return StateStorages(entries.metadata, sorted(first_of.values()) if shared else range(len(entries)), special)


def _storage(
    entries: StateTensors, indices: tuple[int, ...], size: int, places: Mapping[int, SharedRange]
) -> StateStorage:
    device, tensor_bytes = entries.metadata.devices[indices[0]], entries.metadata.nbytes
    if size < 0:
        return StateStorage(indices, device, size, ())
    place = places.get(entries.metadata.storage_ids[indices[0]])
    views = [view_of(entries.objects[index]) for index in indices]
    if place is not None:
        starts = [places[entries.metadata.storage_ids[index]].start for index in indices]
        views = [view.moved(start) for view, start in zip(views, starts, strict=True)]
    if any(tensor_bytes[index] == size for index in indices):
        spans: tuple[tuple[int, int], ...] = ((0, size),)
    else:
        spans = reached(view for view, index in zip(views, indices, strict=True) if tensor_bytes[index])
    offsets = tuple([view.offset for view in views]) if len(views) > 1 else ()
    return StateStorage(indices, device, size, spans, offsets, None if place is None else place.address)


def _sharing(storages: Sequence[int], first_of: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """The tensors that share a storage, by the first of them."""
    shared: defaultdict[int, list[int]] = defaultdict(list)
    for index, storage in enumerate(storages):
        first = first_of[storage]
        if first != index:
            shared[first].append(index)
    return {first: (first, *others) for first, others in shared.items()}


def _diagnostics(entries: StateTensors, traversal: Traversal, spent: set[int]) -> Iterator[FoundDiagnostic]:
    """What prevents moving a tensor, as far as the tensor itself shows it."""
    tensors, origins = traversal.tensors, traversal.origins
    holders = {id(path): holder for holder, path in traversal.holders.values()} if traversal.results else {}
    computed = {index for index in traversal.results if origins.of(index).role == "computed"}
    for index in traversal.results:
        if index not in computed:
            path = origins.of(index).path
            diagnostic = _SPENT_GRAPH if index in spent else _own_graph(path, holders.get(id(path.before)))
            yield FoundDiagnostic(path, tensors[index], diagnostic)
    live = in_live_graphs(
        [tensors[index] for index in traversal.trained], besides=[tensors[index] for index in computed]
    )
    for index in traversal.trained if live else ():
        if id(tensors[index]) in live and origins.of(index).role not in _NEVER_TRAINED:
            yield FoundDiagnostic(origins.of(index).path, tensors[index], _LIVE_GRAPH)
    if any(device.type == "meta" for device in set(entries.metadata.devices)):
        yield from (
            FoundDiagnostic(entry.path, entry.tensor, _META) for entry in entries if entry.device.type == "meta"
        )


def _spent(traversal: Traversal) -> set[int]:
    """The results of computations whose graphs can no longer run backward, by their index in the traversal."""
    ids = with_spent_graphs([traversal.tensors[index] for index in traversal.results]) if traversal.results else set()
    return {index for index in traversal.results if id(traversal.tensors[index]) in ids}


def _own_graph(path: Path, holder: Any) -> Diagnostic:
    why = "is the result of a computation whose graph can still run backward"
    return Diagnostic("R032", why, _detaching(path, holder, f"{path}.detach()"))


def _detaching(path: Path, holder: Any, detached: str) -> str:
    """The code that replaces a stored tensor by a detached one."""
    before, what = path.before, path.what
    if path.how is ITEM and isinstance(holder, tuple):
        return f"{before} = (*{before}[:{what}], {detached}, *{before}[{what + 1}:])"
    if path.how is ATTRIBUTE and isinstance(holder, tuple):
        return f"{before} = {before}._replace({what}={detached})"
    if path.how is ATTRIBUTE and (is_frozen(type(holder)) or not what.isidentifier()):
        return f"object.__setattr__({before}, {what!r}, {detached})"
    return f"{path} = {detached}" if path.how in (ATTRIBUTE, ITEM) else f"detach what is stored at {path}"


def _storage_diagnostics(
    entries: StateTensors, storages: StateStorages, places: Mapping[int, SharedRange]
) -> Iterator[FoundDiagnostic]:
    for indices, _, size, spans, _, address in storages.special.values():
        if spans and spans[-1][1] > size:
            yield FoundDiagnostic(entries[indices[0]].path, entries.objects[indices[0]], _FREED)
        for index in indices if address is not None else ():
            if places[entries.metadata.storage_ids[index]].start % entries.metadata.dtypes[index].itemsize:
                yield FoundDiagnostic(entries[index].path, entries.objects[index], _ODD_START)


_NEVER_TRAINED = {"gradient", "state"}  # a graph that leads to one of these ends there
_FREED = Diagnostic(
    "R034",
    "its storage is smaller than the tensor: its memory was freed (by storage.resize_(), as sharding libraries do)",
    "gather it first, or keep= it",
)
_ODD_START = Diagnostic(
    "R045",
    "its storage overlaps another one, at a distance that is not a multiple of its element size",
    "clone it first",
)
_META = Diagnostic(
    "R030", "a meta tensor has no bytes to move", "materialize it first: load the weights, or to_empty()"
)
_SPENT_GRAPH = Diagnostic("N061", "holds the graph of a computation whose backward has run: it moves as data")
_LIVE_GRAPH = Diagnostic(
    "R033",
    "a forward pass has used it and its graph can still run backward",
    "delete the loss and the outputs (del loss), or call backward() first",
)
