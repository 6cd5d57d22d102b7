"""Where is everything? Walk through the objects, read every tensor, group the windows by storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchmove import _paths
from torchmove._collector import without_collector
from torchmove._graphs import in_live_graphs
from torchmove._records import Block, Fact, Inventory, Slot, Told
from torchmove._shells import PLAIN
from torchmove._storage import look_all, look_at_whole, plain_torch, reached
from torchmove._walk import Found, Walk


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
    slots = _slots(walk)
    blocks = tuple(_blocks(slots))
    return Inventory(
        objects=tuple(objects.values()),
        roots=tuple(objects),
        slots=tuple(slots),
        blocks=blocks,
        shells=tuple(walk.shells),
        device_values=tuple(walk.device_values),
        told=(*walk.told, *_told(slots, walk.results), *_told_of_blocks(slots, blocks)),
        also=tuple(walk.also),
        holders=walk.holders,
        number=dict(zip(map(id, map(attrgetter("tensor"), slots)), range(len(slots)), strict=True)),
    )


# Like Slot(...) and Block(...), from a tuple, at half the price: every tensor of a state gets both.
_make_slot = partial(tuple.__new__, Slot)
_make_block = partial(tuple.__new__, Block)


def _slots(walk: Walk) -> list[Slot]:
    # A class of its own may answer otherwise: an uninitialised parameter refuses to tell its shape.
    readable = [tensor if type(tensor) in PLAIN else tensor.data for tensor, _, _, _ in walk.windows]
    looks = [*look_all(readable), *(look_at_whole(found.tensor) for found in walk.wholes)]
    return [_make_slot(found + look) for found, look in zip([*walk.windows, *walk.wholes], looks, strict=True)]


def _blocks(slots: Sequence[Slot]) -> Iterator[Block]:
    """The slots by storage. Nearly always a storage has one, and it sees all of it."""
    storages = list(map(attrgetter("storage"), slots))
    first_of = dict(zip(reversed(storages), range(len(slots) - 1, -1, -1), strict=True))
    shared = _shared(storages, first_of) if len(first_of) < len(slots) else {}
    whole: dict[int, tuple[tuple[int, int], ...]] = {}  # one for all storages of a size
    for first in sorted(first_of.values()):
        slot = slots[first]
        size = slot.storage_bytes
        indices = shared.get(first) or (first,)
        if slot.nbytes == size or any(slots[index].nbytes == size for index in indices):
            spans = whole.get(size) or whole.setdefault(size, ((0, size),))
        else:
            spans = reached([slots[index] for index in indices]) if size >= 0 else ()
        yield _make_block((indices, slot.device, size, spans))


def _shared(storages: Sequence[int], first_of: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """The slots that share a storage, by the first of them."""
    shared: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    for index, storage in enumerate(storages):
        shared[first_of[storage]] += (index,)
    return shared


def _told(slots: Sequence[Slot], results: Sequence[Found]) -> Iterator[Told]:
    """What stands in the way of moving a tensor, as far as the tensor itself shows it."""
    for found in results:
        if found.role != "computed":
            yield Told(found.path, found.tensor, _GRAPH_INSIDE)
    leaves = [slot for slot in slots if slot.role not in _NEVER_TRAINED]
    computed = [found.tensor for found in results if found.role == "computed"]
    live = in_live_graphs([slot.tensor for slot in leaves], besides=computed)
    yield from (Told(slot.path, slot.tensor, _GRAPH_OVER) for slot in leaves if id(slot.tensor) in live)
    if any(device.type == "meta" for device in set(map(attrgetter("device"), slots))):
        yield from (Told(slot.path, slot.tensor, _META) for slot in slots if slot.device.type == "meta")


def _told_of_blocks(slots: Sequence[Slot], blocks: Sequence[Block]) -> Iterator[Told]:
    for indices, _, size, spans in blocks:
        if spans and spans[-1][1] > size:
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
