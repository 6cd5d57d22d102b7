"""Storages: whether anything else holds one, whether it is alive, and memory that several of them share."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from torchmove.internals.metadata import Metadata, view_of

_cdata = attrgetter("_cdata")


def storage_key(holder: Tensor | UntypedStorage) -> int | None:
    """The identity of a tensor's storage; None where it has no storage."""
    try:
        storage = holder.untyped_storage() if isinstance(holder, Tensor) else holder
        return int(storage._cdata)
    except Exception:  # an uninitialized parameter, or a subclass, raises exceptions of its own
        return None


def storage_device(storage: Any) -> torch.device:
    """The device of a storage. The public attributes of a TypedStorage emit a deprecation warning."""
    return getattr(storage, "_untyped_storage", storage).device  # type: ignore[no-any-return]


def held_elsewhere(storages: Sequence[UntypedStorage], tensors: int = 0) -> Iterable[bool]:
    """For each storage, whether anything but the given list and this many tensors holds it."""
    holders = list(map(torch._C._storage_Use_Count, map(_cdata, storages)))
    # The Python object in the list counts as one holder. A storage has a single Python object: further references to
    # that show in its reference count, not in the storage's use count.
    references, expected = list(map(sys.getrefcount, storages)), _references_in_list(seen=tensors > 0)
    if sum(holders) == len(storages) * (tensors + 1) and sum(references) == len(storages) * expected:
        return repeat(False, len(storages))  # no count can be lower, so equal sums mean that none is higher
    return map(or_, map((tensors + 1).__lt__, holders), map(expected.__lt__, references))


@cache
def _references_in_list(*, seen: bool) -> int:
    """The reference count that `map` sees of a storage object that is only in one list.

    Newer versions of torch count one more if a tensor is on the storage (`seen`).
    """
    tensor = torch.empty(1, device="cpu")
    alone = [tensor.untyped_storage()]
    if not seen:
        del tensor
    (count,) = map(sys.getrefcount, alone)
    return count


def is_sole_owner(tensor: Tensor) -> bool:
    """Whether torch allocated a tensor's memory (not numpy or a file), and nothing else holds its storage."""
    storages = [tensor.untyped_storage()]
    return storages[0].resizable() and not any(held_elsewhere(storages, tensors=1))


class Watch:
    """Tells whether a storage is still alive, by a weak reference."""

    _weak: Any = None

    def __init__(self, storage: UntypedStorage) -> None:
        self.storage = storage._cdata
        self._weak = storage._weak_ref()

    def alive(self) -> bool:
        return not UntypedStorage._expired(self._weak)

    def __del__(self) -> None:
        if self._weak is not None:
            UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]


_address: Callable[[Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]  # of the storage


class SharedRange(NamedTuple):
    """The range of a storage within memory that several storages share."""

    memory: int  # the id of the first of these storages
    address: int
    nbytes: int  # of the memory
    start: int  # of the storage, in that memory


class _Reach(NamedTuple):
    """The addresses that the tensors on a storage reach, and the start and end of the storage."""

    first: int
    stop: int
    address: int
    end: int
    storage: int


def shared_ranges(tensors: Sequence[Tensor], metadata: Metadata) -> dict[int, SharedRange]:
    """For every storage with tensors that overlap those on another storage: its range in the shared memory."""
    if all(metadata.resizables):  # only memory that torch did not allocate can be under two storages
        return {}
    places: dict[int, SharedRange] = {}
    for reaches in _reaches(tensors, metadata).values():
        for together in _overlapping(sorted(reaches)):
            address, end = min(each.address for each in together), max(each.end for each in together)
            memory = together[0].storage
            for each in together:
                places[each.storage] = SharedRange(memory, address, end - address, each.address - address)
    return places


def _reaches(tensors: Sequence[Tensor], metadata: Metadata) -> dict[torch.device, list[_Reach]]:
    extents: defaultdict[tuple[torch.device, int], list[tuple[int, int, int, int]]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        size = metadata.storage_bytes[index]
        address = _address(tensor) if size > 0 < metadata.nbytes[index] else 0
        if address:
            first, stop = view_of(tensor).extent
            on = metadata.devices[index], metadata.storage_ids[index]
            extents[on].append((address + first, address + stop, address, address + size))
    reaches: defaultdict[torch.device, list[_Reach]] = defaultdict(list)
    for (device, storage), several in extents.items():
        firsts, stops, addresses, ends = zip(*several, strict=True)
        reaches[device].append(_Reach(min(firsts), max(stops), addresses[0], ends[0], storage))
    return reaches


def _overlapping(reaches: Sequence[_Reach]) -> Iterator[list[_Reach]]:
    together: list[_Reach] = []
    stop = 0
    for each in reaches:
        if each.first >= stop:
            if len(together) > 1:
                yield together
            together = []
        together.append(each)
        stop = max(stop, each.stop)
    if len(together) > 1:
        yield together
