"""Where is everything? Walk through the objects, read every tensor, group the windows by storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, count
from operator import ne
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchmove.internals.collector import without_collector
from torchmove.internals.graphs import in_live_graphs, with_spent_graphs
from torchmove.internals.metadata import read_metadata_of_wholes, view_of
from torchmove.internals.modes import plain_torch
from torchmove.internals.shared_memory import SharedRange, shared_ranges
from torchmove.internals.stored import is_frozen
from torchmove.internals.views import reached
from torchmove.surveying.children import Diagnostic
from torchmove.surveying.inventory import FoundDiagnostic, Inventory
from torchmove.surveying.paths import ATTRIBUTE, ITEM, NOWHERE, Path, root_path
from torchmove.surveying.storages import StateStorage, StateStorages
from torchmove.surveying.tensors import StateTensors
from torchmove.surveying.traversal import Traversal


@plain_torch
@without_collector
def survey_objects(objects: Mapping[str, Any], *, besides: Sequence[Any] = ()) -> Inventory:
    """The inventory of some objects, each under the name its paths begin with. What is in `besides` is not entered."""
    walk = Traversal()
    walk.holders.update((id(each), (each, NOWHERE)) for each in besides)
    roots = [(root_path(name), value) for name, value in _modules_first(objects)]
    # A given object is found under its own name, not inside another one that holds it too.
    walk.holders.update((id(value), (value, path)) for path, value in roots)
    for path, value in roots:
        walk.enter(path, value)
    walk.follow_tensors()
    for each in besides:
        walk.holders.pop(id(each), None)
    return _inventory(objects, walk)


def _modules_first(objects: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A parameter gets its path from the model that registers it, not from the optimizer that also holds it."""

    def rank(entry: tuple[str, Any]) -> int:
        kind = type(entry[1])
        return 0 if issubclass(kind, nn.Module) else 1 if issubclass(kind, Optimizer) else 2

    return sorted(objects.items(), key=rank)


def _inventory(objects: Mapping[str, Any], walk: Traversal) -> Inventory:
    entries = _tensors(walk)
    places = shared_ranges(entries.objects, entries.metadata)
    storages = _storages(entries, places)
    in_order = len(walk.windows) == len(walk.tensors)
    number = walk.seen if in_order else dict(zip(map(id, entries.objects), count()))
    spent = _spent(walk)
    return Inventory(
        objects=tuple(objects.values()),
        roots=tuple(objects),
        tensors=entries,
        storages=storages,
        composites=tuple(walk.composites),
        device_values=tuple(walk.device_values),
        diagnostics=(
            *walk.diagnostics,
            *_diagnostics(entries, walk, spent),
            *_storage_diagnostics(entries, storages, places),
        ),
        further_paths=tuple(walk.further_paths),
        holders=walk.holders,
        number=number,
        spent=frozenset(number[each] for each in map(id, (walk.tensors[index] for index in spent)) if each in number),
    )


def _tensors(walk: Traversal) -> StateTensors:
    if len(walk.windows) == len(walk.tensors):
        return StateTensors(walk.tensors, walk.metadata, walk.origins, range(len(walk.tensors)))
    walk.metadata.extend(read_metadata_of_wholes([walk.tensors[index] for index in walk.wholes]))
    order = [*walk.windows, *walk.wholes]
    return StateTensors([walk.tensors[index] for index in order], walk.metadata, walk.origins, order)


def _storages(entries: StateTensors, places: Mapping[int, SharedRange]) -> StateStorages:
    """The slots by storage. Nearly always a storage has one, and it sees all of it."""
    _, seen_bytes, storages, sizes = entries.metadata[:4]
    if places:
        found = [places.get(storage) for storage in storages]
        sizes = [place.nbytes if place else size for place, size in zip(found, sizes, strict=True)]
        storages = [place.memory if place else storage for place, storage in zip(found, storages, strict=True)]
    alone = len({*storages}) == len(storages)
    if alone and seen_bytes == sizes:
        return StateStorages(entries.metadata, range(len(entries)), {})
    first_of = dict(zip(reversed(storages), range(len(entries) - 1, -1, -1), strict=True))
    shared = {} if alone else _sharing(storages, first_of)
    in_part = compress(count(), map(ne, seen_bytes, sizes))
    special = {}
    for first in {first_of[storages[index]] for index in in_part} | shared.keys():
        special[first] = _storage(entries, shared.get(first, (first,)), sizes[first], places)
    return StateStorages(entries.metadata, sorted(first_of.values()) if shared else range(len(entries)), special)


def _storage(
    entries: StateTensors, indices: tuple[int, ...], size: int, places: Mapping[int, SharedRange]
) -> StateStorage:
    device, seen_bytes = entries.metadata.devices[indices[0]], entries.metadata.nbytes
    if size < 0:
        return StateStorage(indices, device, size, ())
    place = places.get(entries.metadata.storage_ids[indices[0]])
    windows = [view_of(entries.objects[index]) for index in indices]
    if place is not None:
        starts = [places[entries.metadata.storage_ids[index]].start for index in indices]
        windows = [window.moved(start) for window, start in zip(windows, starts, strict=True)]
    if any(seen_bytes[index] == size for index in indices):
        spans: tuple[tuple[int, int], ...] = ((0, size),)
    else:
        spans = reached(window for window, index in zip(windows, indices, strict=True) if seen_bytes[index])
    offsets = tuple([window.offset for window in windows]) if len(windows) > 1 else ()
    return StateStorage(indices, device, size, spans, offsets, None if place is None else place.address)


def _sharing(storages: Sequence[int], first_of: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """The slots that share a storage, by the first of them."""
    shared: defaultdict[int, list[int]] = defaultdict(list)
    for index, storage in enumerate(storages):
        first = first_of[storage]
        if first != index:
            shared[first].append(index)
    return {first: (first, *others) for first, others in shared.items()}


def _diagnostics(entries: StateTensors, walk: Traversal, spent: set[int]) -> Iterator[FoundDiagnostic]:
    """What stands in the way of moving a tensor, as far as the tensor itself shows it."""
    tensors, origins = walk.tensors, walk.origins
    holders = {id(path): holder for holder, path in walk.holders.values()} if walk.results else {}
    computed = {index for index in walk.results if origins.of(index).role == "computed"}
    for index in walk.results:
        if index not in computed:
            path = origins.of(index).path
            diagnostic = _SPENT_GRAPH if index in spent else _graph_inside(path, holders.get(id(path.before)))
            yield FoundDiagnostic(path, tensors[index], diagnostic)
    live = in_live_graphs([tensors[index] for index in walk.trained], besides=[tensors[index] for index in computed])
    for index in walk.trained if live else ():
        if id(tensors[index]) in live and origins.of(index).role not in _NEVER_TRAINED:
            yield FoundDiagnostic(origins.of(index).path, tensors[index], _GRAPH_OVER)
    if any(device.type == "meta" for device in set(entries.metadata.devices)):
        yield from (
            FoundDiagnostic(entry.path, entry.tensor, _META) for entry in entries if entry.device.type == "meta"
        )


def _spent(walk: Traversal) -> set[int]:
    """The results of computations whose graphs cannot run any more, by their numbers in the walk."""
    ids = with_spent_graphs([walk.tensors[index] for index in walk.results]) if walk.results else set()
    return {index for index in walk.results if id(walk.tensors[index]) in ids}


def _graph_inside(path: Path, holder: Any) -> Diagnostic:
    why = "is the result of a computation whose graph can still run backward"
    return Diagnostic("R032", why, _detaching(path, holder, f"{path}.detach()"))


def _detaching(path: Path, holder: Any, detached: str) -> str:
    """What puts a detached tensor in the place of the one that is there."""
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


_NEVER_TRAINED = {"gradient", "state"}  # a graph that leads to one of these ends in the tensor itself
_FREED = Diagnostic(
    "R034",
    "its storage is smaller than what it shows: someone took the memory away (resize_ of a storage, as shards do)",
    "gather it first, or keep it",
)
_ODD_START = Diagnostic(
    "R045",
    "shares memory with another storage, from which it is a part of an element away: no view can be that",
    "clone it first",
)
_META = Diagnostic(
    "R030", "a meta tensor has no bytes to move", "materialise it first: load the weights, or to_empty()"
)
_SPENT_GRAPH = Diagnostic("N061", "holds the graph of a computation whose backward has run: it moves as data")
_GRAPH_OVER = Diagnostic(
    "R033",
    "a forward pass has used it and its graph can still run backward",
    "drop the loss and the outputs (del loss), or call backward() first",
)
