"""The Inventory: where is everything?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmove.results import Result
from torchmove.surveying.children import Fact, Owner, Role
from torchmove.surveying.paths import Path, make_path
from torchmove.surveying.storages import Block, Blocks
from torchmove.surveying.tensors import Slot, Slots


class Shell(NamedTuple):
    """A tensor made of tensors (sparse, nested, a wrapper subclass): `rebuild` makes it anew from its parts."""

    tensor: Tensor
    path: Path
    role: Role
    owner: Owner | None
    parts: tuple[Tensor, ...]
    rebuild: Callable[[], Tensor]


class DeviceValue(NamedTuple):
    """A device that a holder remembers: a `torch.device`, or its name or index in a place that says device."""

    holder: Any
    how: str
    what: Any
    value: torch.device | str | int
    path: Path

    @property
    def device(self) -> torch.device:
        return torch.device(self.value)


class Also(NamedTuple):
    """Tensors, by their ids, and further paths that lead to them."""

    tensors: Sequence[int]
    before: Path | None
    how: str
    keys: Sequence[Any]


class Told(NamedTuple):
    """A reader's fact, and the holder or tensor that it speaks of."""

    path: Path
    about: Any
    fact: Fact


@dataclass(frozen=True, eq=False, repr=False)
class Inventory(Result):
    """Every tensor of a state: its path, role, device, bytes, and who shares with whom. It holds the state.

    Attributes:
        roots: the names of the given objects, with which paths begin.
        slots: a row for each tensor: `path`, `role`, `device`, `nbytes`, `tensor`.
        blocks: a row for each storage: `device`, `nbytes`, and which slots look at it.
        told: facts about the holders: what stands in the way of a move, and what is worth knowing.
    """

    objects: tuple[Any, ...]
    roots: tuple[str, ...]
    slots: Slots
    blocks: Blocks
    shells: tuple[Shell, ...]
    device_values: tuple[DeviceValue, ...]
    told: tuple[Told, ...]
    also: tuple[Also, ...]
    holders: Mapping[int, tuple[Any, Path]]  # every holder by its id; this keeps the id its own
    number: Mapping[int, int]  # the index of a tensor's slot, by the tensor's id
    spent: frozenset[int] = frozenset()  # the slots of stored results whose graphs cannot run any more

    def archived(self, *, numbered: bool = True) -> Inventory:
        """The same, remembering the tensors by their ids alone: it keeps nothing of the state alive.

        Not `numbered`, it does not even know their ids, and only shows what was where.
        """
        number = self.number if numbered else {}
        if self.shells and numbered:
            gone = {*self.slots.made_anew()}
            number = {tensor: index for tensor, index in number.items() if index not in gone}
        emptied: dict[str, Any] = {"objects": (), "shells": (), "device_values": (), "told": (), "holders": {}}
        return replace(self, slots=self.slots.archived(), number=number, **emptied)

    @cached_property
    def other_paths(self) -> Mapping[int, list[Path]]:
        """The further paths by which a tensor is reached, by its id."""
        paths: defaultdict[int, list[Path]] = defaultdict(list)
        for tensors, before, how, keys in self.also:
            for tensor, key in zip(tensors, keys, strict=True):
                paths[tensor].append(make_path((before, how, key)))
        return paths

    @property
    def nbytes(self) -> int:
        """Bytes on all devices together. What is shared counts once."""
        return sum(self.devices().values())

    def devices(self) -> dict[torch.device, int]:
        """Bytes on each device."""
        totals: defaultdict[torch.device, int] = defaultdict(int)
        for block in self.blocks:
            totals[block.device] += self.slots.looks.nbytes[block.slots[0]] if block.opaque else block.nbytes
        return dict(totals)

    def sharing(self, slot: Slot) -> Iterator[Path]:
        """The paths of the other tensors that look at the slot's storage."""
        block = self._block_of.get(slot.storage)
        others = [self.slots[index] for index in block.slots] if block and len(block.slots) > 1 else []
        return (other.path for other in others if other.tensor is not slot.tensor)

    @cached_property
    def _block_of(self) -> Mapping[int, Block]:
        storages = self.slots.looks.storages
        return {storages[slot]: block for block in self.blocks for slot in block.slots}
