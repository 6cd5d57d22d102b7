"""Where is everything? Walk through the objects, read every tensor, group the windows by storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, count
from operator import add, attrgetter, ne
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchmove import _paths
from torchmove._collector import without_collector
from torchmove._graphs import in_live_graphs
from torchmove._records import Block, Fact, Inventory, Slot, Told, make_slot
from torchmove._storage import Looks, look_at_wholes, plain_torch, reached
from torchmove._walk import Walk, path_of


def survey(objects: Mapping[str, Any], *, besides: Sequence[Any] = ()) -> Inventory:
    """The inventory of some objects, each under the name its paths begin with. What is in `besides` is not entered."""
    walk = Walk()
    walk.holders.update((id(each), (each, _paths.root("..."))) for each in besides)
    roots = [(_paths.root(name), value) for name, value in _modules_first(objects)]
    # A given object is found under its own name, not inside another one that holds it too.
    walk.holders.update((id(value), (value, path)) for path, value in roots)
    with plain_torch(), without_collector():
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
    slots, blocks = _slots_and_blocks(walk)
    ids = walk.seen if len(walk.seen) == len(slots) else map(id, map(attrgetter("tensor"), slots))
    return Inventory(
        objects=tuple(objects.values()),
        roots=tuple(objects),
        slots=slots,
        blocks=blocks,
        shells=tuple(walk.shells),
        device_values=tuple(walk.device_values),
        told=(*walk.told, *_told(slots, walk), *_told_of_blocks(slots, blocks)),
        also=tuple(walk.also),
        holders=walk.holders,
        number=dict(zip(ids, range(len(slots)), strict=True)),
    )


_make_block = partial(tuple.__new__, Block)  # like Block(...), from a tuple, and cheaper


def _slots_and_blocks(walk: Walk) -> tuple[tuple[Slot, ...], tuple[Block, ...]]:
    looks = walk.looks
    looks.extend(look_at_wholes([found[0] for found in walk.wholes]))
    found = [*walk.windows, *walk.wholes]
    slots = tuple(map(make_slot, map(add, found, zip(*looks, strict=True))))
    return slots, tuple(_blocks(slots, looks))


def _blocks(slots: Sequence[Slot], looks: Looks) -> list[Block]:
    """The slots by storage. Nearly always a storage has one, and it sees all of it."""
    devices, seen_bytes, storages, sizes = looks
    first_of = dict(zip(reversed(storages), range(len(slots) - 1, -1, -1), strict=True))
    whole = {size: ((0, size),) for size in set(sizes)}
    columns = zip(zip(range(len(slots)), strict=True), devices, sizes, map(whole.__getitem__, sizes), strict=True)
    blocks = list(map(_make_block, columns))
    shared = _shared(storages, first_of) if len(first_of) < len(slots) else {}
    in_part = compress(count(), map(ne, seen_bytes, sizes))
    for first in {first_of[storages[index]] for index in in_part} | shared.keys():
        indices = shared.get(first, (first,))
        blocks[first] = blocks[first]._replace(slots=indices, spans=_spans([slots[index] for index in indices]))
    return [blocks[first] for first in sorted(first_of.values())] if shared else blocks


def _spans(sharing: Sequence[Slot]) -> tuple[tuple[int, int], ...]:
    size = sharing[0].storage_bytes
    if any(slot.nbytes == size for slot in sharing):
        return ((0, size),)
    return reached(sharing) if size >= 0 else ()


def _shared(storages: Sequence[int], first_of: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """The slots that share a storage, by the first of them."""
    shared: defaultdict[int, list[int]] = defaultdict(list)
    for index, storage in enumerate(storages):
        first = first_of[storage]
        if first != index:
            shared[first].append(index)
    return {first: (first, *others) for first, others in shared.items()}


def _told(slots: Sequence[Slot], walk: Walk) -> Iterator[Told]:
    """What stands in the way of moving a tensor, as far as the tensor itself shows it."""
    for found in walk.results:
        if found[4] != "computed":
            yield Told(path_of(found), found[0], _GRAPH_INSIDE)
    leaves = [found for found in walk.trained if found[4] not in _NEVER_TRAINED]
    computed = [found[0] for found in walk.results if found[4] == "computed"]
    live = in_live_graphs([found[0] for found in leaves], besides=computed)
    if live:
        yield from (Told(path_of(found), found[0], _GRAPH_OVER) for found in leaves if id(found[0]) in live)
    if any(device.type == "meta" for device in set(map(attrgetter("device"), slots))):
        yield from (Told(slot.path, slot.tensor, _META) for slot in slots if slot.device.type == "meta")


def _told_of_blocks(slots: Sequence[Slot], blocks: Sequence[Block]) -> Iterator[Told]:
    for indices, _, _, _ in [block for block in blocks if block[3] and block[3][-1][1] > block[2]]:
        yield Told(slots[indices[0]].path, slots[indices[0]].tensor, _FREED)


_NEVER_TRAINED = {"gradient", "state"}  # a graph that leads to one of these ends in the tensor itself
_FREED = Fact(
    "R034",
    "its storage is smaller than what it shows: someone took the memory away (resize_ of a storage, as shards do)",
    "gather it first, or keep it",
)
_META = Fact("R030", "a meta tensor has no bytes to move", "materialise it first: load the weights, or to_empty()")
_GRAPH_INSIDE = Fact(
    "R032",
    "is the result of a computation whose graph is alive",
    "detach it: module.name = module.name.detach()",
)
_GRAPH_OVER = Fact(
    "R033",
    "a forward pass has used it and its graph can still run backward",
    "drop the loss and the outputs (del loss), or call backward() first",
)
