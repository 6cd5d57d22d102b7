"""Make the Inventory of some objects: traverse them, read every tensor, group the tensors by storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, count
from operator import ne
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchmove.internals.graphs import in_live_graphs, with_spent_graphs
from torchmove.internals.guards import plain_torch, without_collector
from torchmove.internals.metadata import read_metadata_of_wholes, view_of
from torchmove.internals.storages import SharedRange, shared_ranges
from torchmove.internals.stored import is_frozen
from torchmove.internals.views import reached
from torchmove.surveying.children import Diagnostic
from torchmove.surveying.inventory import FoundDiagnostic, Inventory, StateStorage, StateStorages, StateTensors
from torchmove.surveying.paths import ATTRIBUTE, ITEM, NOWHERE, Path, root_path
from torchmove.surveying.traversal import Traversal


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
