"""The storages of a state, which are what moves. Nearly every one has a single tensor that covers all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from torchmove.internals.metadata import Metadata
from torchmove.surveying.tensors import Rows


class StateStorage(NamedTuple):
    """A storage: the tensors on it, by their indices, and the spans of its bytes that they reach.

    With several tensors, `offsets` has the storage offset of each, in elements. Several storages over the same memory
    are one; `address` is where that memory starts. A negative size: the device has no storages.
    """

    indices: tuple[int, ...]
    device: torch.device
    storage_bytes: int
    spans: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...] = ()
    address: int | None = None

    @property
    def opaque(self) -> bool:
        return self.storage_bytes < 0

    @property
    def nbytes(self) -> int:
        """The bytes that are copied when it moves."""
        return sum(stop - start for start, stop in self.spans)


class StateStorages(Rows[StateStorage]):
    """The storages, by the index of the first tensor on each; a row is made on access.

    `special` holds those with several tensors, and those of which the tensors reach only a part.
    """

    def __init__(self, metadata: Metadata, firsts: Sequence[int], special: Mapping[int, StateStorage]) -> None:
        self.metadata, self.firsts, self.special = metadata, firsts, special

    def __len__(self) -> int:
        return len(self.firsts)

    def row(self, index: int) -> StateStorage:
        return self.at(self.firsts[index])

    def at(self, first: int) -> StateStorage:
        """The storage on which this is the first tensor."""
        special = self.special.get(first)
        if special is not None:
            return special
        size = self.metadata.storage_bytes[first]
        return StateStorage((first,), self.metadata.devices[first], size, ((0, size),))

    def shared(self) -> list[StateStorage]:
        """The storages with more than one tensor."""
        return [storage for storage in self.special.values() if len(storage.indices) > 1]
