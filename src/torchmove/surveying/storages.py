"""Storages: what moves. Nearly every one has a single slot that sees all of it, and is put together when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from torchmove.internals.metadata import Looks
from torchmove.surveying.tensors import Rows


class Block(NamedTuple):
    """A storage: the slots that look at it, and the spans of its bytes that they reach. None: it shows no storage.

    Where there are several slots, `offsets` has for each where in the storage its window begins, in elements. Several
    storages over the same memory are one block; `address` says where that memory begins.
    """

    slots: tuple[int, ...]
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
        """What travels when it moves."""
        return sum(stop - start for start, stop in self.spans)


class Blocks(Rows[Block]):
    """All of them, by the first slot that looks at each. `special`: what is not one slot's alone, or not all of it."""

    def __init__(self, looks: Looks, firsts: Sequence[int], special: Mapping[int, Block]) -> None:
        self.looks, self.firsts, self.special = looks, firsts, special

    def __len__(self) -> int:
        return len(self.firsts)

    def row(self, index: int) -> Block:
        return self.at(self.firsts[index])

    def at(self, first: int) -> Block:
        """The block of which this is the first slot."""
        special = self.special.get(first)
        if special is not None:
            return special
        size = self.looks.storage_bytes[first]
        return Block((first,), self.looks.devices[first], size, ((0, size),))

    def shared(self) -> list[Block]:
        """Those that more than one slot looks at."""
        return [block for block in self.special.values() if len(block.slots) > 1]
