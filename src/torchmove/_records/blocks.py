"""Storages: what moves. Nearly every one has a single slot that sees all of it, and is put together when asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from torchmove._records.columns import Rows
from torchmove._records.slots import Looks

Way = tuple[torch.device, torch.device]  # from where, to where


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


class Move(NamedTuple):
    """A block that travels, and where to."""

    block: Block
    target: torch.device


class Moves(Rows[Move]):
    """All of them, by the first slot of each block."""

    def __init__(self, blocks: Blocks, firsts: Sequence[int], placement: Sequence[torch.device]) -> None:
        self.blocks, self.firsts, self.placement = blocks, firsts, placement

    def __len__(self) -> int:
        return len(self.firsts)

    def row(self, index: int) -> Move:
        first = self.firsts[index]
        return Move(self.blocks.at(first), self.placement[first])

    @cached_property
    def ways(self) -> dict[Way, Sequence[int]]:
        """Which of the moves go from where to where. Mostly all go one way."""
        homes = [self.blocks.looks.devices[first] for first in self.firsts]
        targets = [self.placement[first] for first in self.firsts]
        if homes and homes.count(homes[0]) == targets.count(targets[0]) == len(homes):
            return {(homes[0], targets[0]): range(len(homes))}
        ways: defaultdict[Way, list[int]] = defaultdict(list)
        for index, way in enumerate(zip(homes, targets, strict=True)):
            ways[way].append(index)
        return dict(ways)

    @cached_property
    def nbytes(self) -> list[int]:
        """What travels of each."""
        sizes, special = self.blocks.looks.storage_bytes, self.blocks.special
        nbytes = [sizes[first] for first in self.firsts]
        if special:
            for index, first in enumerate(self.firsts):
                if first in special:
                    nbytes[index] = special[first].nbytes
        return nbytes

    def special(self) -> Iterator[tuple[int, Block]]:
        """Those whose block is not one slot's alone and whole."""
        special = self.blocks.special
        return (
            ((index, special[first]) for index, first in enumerate(self.firsts) if first in special)
            if special
            else iter(())
        )

    def slots(self) -> Iterator[int]:
        """The slots that move."""
        if not self.blocks.special:
            return iter(self.firsts)
        return (slot for first in self.firsts for slot in self.blocks.at(first).slots)
