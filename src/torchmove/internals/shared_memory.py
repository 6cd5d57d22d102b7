"""Memory under several storages, as from numpy, DLPack or other processes: it moves as one storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.internals.metadata import Metadata, view_of

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
