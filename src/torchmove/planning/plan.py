"""The Plan: what a move would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchmove.formatting import listed, readable_bytes
from torchmove.internals.storages import Metadata
from torchmove.progress import Stage
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory, RememberedDevice, Rows, StateStorage, StateStorages
from torchmove.surveying.paths import Path

Way = tuple[torch.device, torch.device]  # source and target


class Conversion(NamedTuple):
    """A storage whose copy has another dtype or memory format: those of every tensor on the copy."""

    dtype: torch.dtype
    memory_format: torch.memory_format  # preserve_format: size, stride and offset stay

    def converted(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A new tensor: as `.to()` converts this one."""
        return tensor.detach().to(device, self.dtype, memory_format=self.memory_format, copy=True)

    def stride(self, shape: torch.Size, stride: tuple[int, ...]) -> tuple[int, ...]:
        if self.memory_format is torch.preserve_format:
            return stride
        return torch.empty(shape, device="meta", memory_format=self.memory_format).stride()


class Move(NamedTuple):
    """A storage that moves, and its target."""

    storage: StateStorage
    target: torch.device


_NO_CONVERSIONS: Mapping[int, Conversion] = {}


class Moves(Rows[Move]):
    """The storages that move, by the index of the first tensor on each."""

    def __init__(
        self,
        storages: StateStorages,
        firsts: Sequence[int],
        placement: Sequence[torch.device],
        conversions: Mapping[int, Conversion] = _NO_CONVERSIONS,
    ) -> None:
        self.storages, self.firsts, self.placement = storages, firsts, placement
        self.conversions = conversions  # by the first tensor on the storage

    def __len__(self) -> int:
        return len(self.firsts)

    def row(self, index: int) -> Move:
        first = self.firsts[index]
        return Move(self.storages.at(first), self.placement[first])

    @cached_property
    def ways(self) -> dict[Way, Sequence[int]]:
        """The moves by source and target device. Mostly all have the same."""
        homes = [self.storages.metadata.devices[first] for first in self.firsts]
        targets = [self.placement[first] for first in self.firsts]
        if homes and homes.count(homes[0]) == targets.count(targets[0]) == len(homes):
            return {(homes[0], targets[0]): range(len(homes))}
        ways: defaultdict[Way, list[int]] = defaultdict(list)
        for index, way in enumerate(zip(homes, targets, strict=True)):
            ways[way].append(index)
        return dict(ways)

    @cached_property
    def nbytes(self) -> list[int]:
        """The bytes that are copied for each."""
        sizes, special = self.storages.metadata.storage_bytes, self.storages.special
        nbytes = [sizes[first] for first in self.firsts]
        if special:
            for index, first in enumerate(self.firsts):
                if first in special:
                    nbytes[index] = special[first].nbytes
        return nbytes

    def arriving_bytes(self, index: int) -> int:
        """The bytes of the tensors of a storage as they arrive: those of the storage, unless it is converted."""
        first = self.firsts[index]
        nbytes, conversion = self.nbytes[index], self.conversions.get(first)
        if conversion is None:
            return nbytes
        return nbytes // self.storages.metadata.dtypes[first].itemsize * conversion.dtype.itemsize

    @cached_property
    def converted(self) -> Mapping[int, Conversion]:
        """The conversion of each tensor that is converted, by the index of the tensor."""
        firsts = self.firsts if self.conversions else ()
        return {
            index: self.conversions[first]
            for first in firsts
            if first in self.conversions
            for index in self.storages.at(first).indices
        }

    def special(self) -> Iterator[tuple[int, StateStorage]]:
        """The moves of storages with several tensors, or of which tensors reach only a part."""
        special = self.storages.special
        return (
            ((index, special[first]) for index, first in enumerate(self.firsts) if first in special)
            if special
            else iter(())
        )

    def indices(self) -> Iterator[int]:
        """The indices of the tensors that move."""
        if not self.storages.special:
            return iter(self.firsts)
        return (index for first in self.firsts for index in self.storages.at(first).indices)


class Stay(NamedTuple):
    """A tensor that stays where it is, and why."""

    path: Path
    nbytes: int
    why: str


class Repoint(NamedTuple):
    """A remembered device that changes with the state."""

    value: RememberedDevice
    new: torch.device | str | int


class Refusal(NamedTuple):
    """A reason why the state cannot move as requested, and its fix."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Fix: {self.remedy}"


class Note(NamedTuple):
    """Something to know about a move that does not prevent it."""

    code: str
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}"


class Adopted(NamedTuple):
    """What modules changed in their own `_apply`.

    By the ids of tensors: those that they dropped, those that they added with their devices, and the paths of
    parameters that they replaced. The notes report it.
    """

    dropped: frozenset[int] = frozenset()
    added: Mapping[int, torch.device] = {}  # never modified
    replaced: Mapping[int, str] = {}
    notes: tuple[Note, ...] = ()


_NOTHING_ADOPTED = Adopted()


class MemoryNeed(NamedTuple):
    """The memory that a move needs on a device, and what is free there (None: unknown)."""

    device: torch.device
    needs_bytes: int
    has_bytes: int | None

    def __str__(self) -> str:
        has = "" if self.has_bytes is None else f", {readable_bytes(self.has_bytes)} free"
        return f"{self.device}: needs {readable_bytes(self.needs_bytes)}{has}"


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result):
    """What would move, what stays and why, what prevents the move, and whether it fits. Keeps the state alive.

    A plan is true if nothing prevents the move.

    Attributes:
        target: the device that the state would move to.
        moves: a row for each storage that would move.
        refusals: what prevents the move, each with `code`, `path`, `why` and `remedy`.
        notes: what to know about the move, each with `code`, `path` and `why`.
        rooms: the memory needed on each device, and what is free there.
        devices: the devices of `to=`: several if it was a dict.
        dtype: the dtype that parameters and buffers are cast to, or None.
        memory_format: the memory format that parameters and buffers get.
        repoints: remembered devices that would change too.
        assumed_bytes: the memory that the target was assumed to have free, if it need not exist; else None.
    """

    inventory: Inventory
    target: torch.device
    moves: Moves
    reasons: Mapping[int, str]  # why a tensor stays, by its index
    repoints: tuple[Repoint, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[Note, ...]
    rooms: tuple[MemoryNeed, ...]
    placement: Sequence[torch.device]  # the device of each tensor after the move, in the inventory's order
    digests: tuple[Digest, ...] | None = None  # the digest of each tensor's bytes, if requested
    stages: tuple[Stage, ...] = ()
    adopted: Adopted = _NOTHING_ADOPTED
    devices: tuple[torch.device, ...] = ()  # those of `to=`: the target alone, or those of a dict
    dtype: torch.dtype | None = None  # that of parameters and buffers after the move, if requested
    memory_format: torch.memory_format = torch.preserve_format
    assumed_bytes: int | None = None

    @cached_property
    def metadata(self) -> Metadata:
        """The metadata of the tensors after the move, except their devices and storages."""
        before = self.inventory.tensors.metadata
        if not self.moves.converted:
            return before
        dtypes, strides, nbytes = list(before.dtypes), list(before.strides), list(before.nbytes)
        for index, conversion in self.moves.converted.items():
            dtypes[index], strides[index] = conversion.dtype, conversion.stride(before.shapes[index], strides[index])
            nbytes[index] = nbytes[index] // before.dtypes[index].itemsize * conversion.dtype.itemsize
        return before._replace(dtypes=dtypes, strides=strides, nbytes=nbytes)

    @property
    def ok(self) -> bool:
        """True if nothing prevents the move."""
        return not self.refusals

    def __bool__(self) -> bool:
        return self.ok

    @cached_property
    def stays(self) -> tuple[Stay, ...]:
        """What stays where it is, each with `path`, `nbytes` and `why`."""
        entries = self.inventory.tensors
        return tuple(
            Stay(entries[index].path, entries[index].nbytes, why) for index, why in sorted(self.reasons.items())
        )

    def archived(self) -> Plan:
        """A copy that keeps nothing of the state alive."""
        repoints = tuple(Repoint(point.value._replace(holder=None), point.new) for point in self.repoints)
        return replace(self, inventory=self.inventory.archived(), repoints=repoints)

    def with_adopted(self, adopted: Adopted) -> Plan:
        """The plan after it was applied, with what modules changed themselves."""
        return replace(self, adopted=adopted, notes=(*self.notes, *adopted.notes)) if any(adopted) else self

    @property
    def converts(self) -> str:
        """What parameters and buffers are converted to, as text: "bfloat16, channels_last"; empty if nothing is."""
        parts = [] if self.dtype is None else [str(self.dtype)]
        parts += [] if self.memory_format is torch.preserve_format else [str(self.memory_format)]
        return ", ".join(part.removeprefix("torch.") for part in parts)

    @property
    def destination(self) -> str:
        """The devices of `to=`, as text."""
        return listed(self.devices or (self.target,))

    @property
    def nbytes(self) -> int:
        """Bytes that would move."""
        return sum(room.needs_bytes for room in self.rooms)

    @property
    def tensors(self) -> int:
        """How many tensors would move."""
        return sum(1 for _ in self.moves.indices())


# The digest of a tensor: two sums over its elements, one of them weighted by position.
Digest = tuple[int, int]
