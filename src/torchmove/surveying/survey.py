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
from torchmove.internals.metadata import look_at_wholes, window_of
from torchmove.internals.modes import plain_torch
from torchmove.internals.shared_memory import Place, places_in_memory
from torchmove.internals.stored import is_frozen
from torchmove.internals.views import reached
from torchmove.surveying.children import Fact
from torchmove.surveying.inventory import Inventory, Told
from torchmove.surveying.paths import ATTRIBUTE, ITEM, NOWHERE, Path, root_path
from torchmove.surveying.storages import Block, Blocks
from torchmove.surveying.tensors import Slots
from torchmove.surveying.traversal import Walk


@plain_torch
@without_collector
def survey_objects(objects: Mapping[str, Any], *, besides: Sequence[Any] = ()) -> Inventory:
    """The inventory of some objects, each under the name its paths begin with. What is in `besides` is not entered."""
    walk = Walk()
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


def _inventory(objects: Mapping[str, Any], walk: Walk) -> Inventory:
    slots = _slots(walk)
    places = places_in_memory(slots.tensors, slots.looks)
    blocks = _blocks(slots, places)
    in_order = len(walk.windows) == len(walk.tensors)
    number = walk.seen if in_order else dict(zip(map(id, slots.tensors), count()))
    spent = _spent(walk)
    return Inventory(
        objects=tuple(objects.values()),
        roots=tuple(objects),
        slots=slots,
        blocks=blocks,
        shells=tuple(walk.shells),
        device_values=tuple(walk.device_values),
        told=(*walk.told, *_told(slots, walk, spent), *_told_of_blocks(slots, blocks, places)),
        also=tuple(walk.also),
        holders=walk.holders,
        number=number,
        spent=frozenset(number[each] for each in map(id, (walk.tensors[index] for index in spent)) if each in number),
    )


def _slots(walk: Walk) -> Slots:
    if len(walk.windows) == len(walk.tensors):
        return Slots(walk.tensors, walk.looks, walk.origins, range(len(walk.tensors)))
    walk.looks.extend(look_at_wholes([walk.tensors[index] for index in walk.wholes]))
    order = [*walk.windows, *walk.wholes]
    return Slots([walk.tensors[index] for index in order], walk.looks, walk.origins, order)


def _blocks(slots: Slots, places: Mapping[int, Place]) -> Blocks:
    """The slots by storage. Nearly always a storage has one, and it sees all of it."""
    _, seen_bytes, storages, sizes = slots.looks[:4]
    if places:
        found = [places.get(storage) for storage in storages]
        sizes = [place.nbytes if place else size for place, size in zip(found, sizes, strict=True)]
        storages = [place.memory if place else storage for place, storage in zip(found, storages, strict=True)]
    alone = len({*storages}) == len(storages)
    if alone and seen_bytes == sizes:
        return Blocks(slots.looks, range(len(slots)), {})
    first_of = dict(zip(reversed(storages), range(len(slots) - 1, -1, -1), strict=True))
    shared = {} if alone else _shared(storages, first_of)
    in_part = compress(count(), map(ne, seen_bytes, sizes))
    special = {}
    for first in {first_of[storages[index]] for index in in_part} | shared.keys():
        special[first] = _block(slots, shared.get(first, (first,)), sizes[first], places)
    return Blocks(slots.looks, sorted(first_of.values()) if shared else range(len(slots)), special)


def _block(slots: Slots, indices: tuple[int, ...], size: int, places: Mapping[int, Place]) -> Block:
    device, seen_bytes = slots.looks.devices[indices[0]], slots.looks.nbytes
    if size < 0:
        return Block(indices, device, size, ())
    place = places.get(slots.looks.storages[indices[0]])
    windows = [window_of(slots.tensors[index]) for index in indices]
    if place is not None:
        starts = [places[slots.looks.storages[index]].start for index in indices]
        windows = [window.moved(start) for window, start in zip(windows, starts, strict=True)]
    if any(seen_bytes[index] == size for index in indices):
        spans: tuple[tuple[int, int], ...] = ((0, size),)
    else:
        spans = reached(window for window, index in zip(windows, indices, strict=True) if seen_bytes[index])
    offsets = tuple([window.offset for window in windows]) if len(windows) > 1 else ()
    return Block(indices, device, size, spans, offsets, None if place is None else place.address)


def _shared(storages: Sequence[int], first_of: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """The slots that share a storage, by the first of them."""
    shared: defaultdict[int, list[int]] = defaultdict(list)
    for index, storage in enumerate(storages):
        first = first_of[storage]
        if first != index:
            shared[first].append(index)
    return {first: (first, *others) for first, others in shared.items()}


def _told(slots: Slots, walk: Walk, spent: set[int]) -> Iterator[Told]:
    """What stands in the way of moving a tensor, as far as the tensor itself shows it."""
    tensors, origins = walk.tensors, walk.origins
    holders = {id(path): holder for holder, path in walk.holders.values()} if walk.results else {}
    computed = {index for index in walk.results if origins.of(index).role == "computed"}
    for index in walk.results:
        if index not in computed:
            path = origins.of(index).path
            fact = _SPENT_GRAPH if index in spent else _graph_inside(path, holders.get(id(path.before)))
            yield Told(path, tensors[index], fact)
    live = in_live_graphs([tensors[index] for index in walk.trained], besides=[tensors[index] for index in computed])
    for index in walk.trained if live else ():
        if id(tensors[index]) in live and origins.of(index).role not in _NEVER_TRAINED:
            yield Told(origins.of(index).path, tensors[index], _GRAPH_OVER)
    if any(device.type == "meta" for device in set(slots.looks.devices)):
        yield from (Told(slot.path, slot.tensor, _META) for slot in slots if slot.device.type == "meta")


def _spent(walk: Walk) -> set[int]:
    """The results of computations whose graphs cannot run any more, by their numbers in the walk."""
    ids = with_spent_graphs([walk.tensors[index] for index in walk.results]) if walk.results else set()
    return {index for index in walk.results if id(walk.tensors[index]) in ids}


def _graph_inside(path: Path, holder: Any) -> Fact:
    why = "is the result of a computation whose graph can still run backward"
    return Fact("R032", why, _detaching(path, holder, f"{path}.detach()"))


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


def _told_of_blocks(slots: Slots, blocks: Blocks, places: Mapping[int, Place]) -> Iterator[Told]:
    for indices, _, size, spans, _, address in blocks.special.values():
        if spans and spans[-1][1] > size:
            yield Told(slots[indices[0]].path, slots.tensors[indices[0]], _FREED)
        for index in indices if address is not None else ():
            if places[slots.looks.storages[index]].start % slots.looks.dtypes[index].itemsize:
                yield Told(slots[index].path, slots.tensors[index], _ODD_START)


_NEVER_TRAINED = {"gradient", "state"}  # a graph that leads to one of these ends in the tensor itself
_FREED = Fact(
    "R034",
    "its storage is smaller than what it shows: someone took the memory away (resize_ of a storage, as shards do)",
    "gather it first, or keep it",
)
_ODD_START = Fact(
    "R045",
    "shares memory with another storage, from which it is a part of an element away: no view can be that",
    "clone it first",
)
_META = Fact("R030", "a meta tensor has no bytes to move", "materialise it first: load the weights, or to_empty()")
_SPENT_GRAPH = Fact("N061", "holds the graph of a computation whose backward has run: it moves as data")
_GRAPH_OVER = Fact(
    "R033",
    "a forward pass has used it and its graph can still run backward",
    "drop the loss and the outputs (del loss), or call backward() first",
)
