"""The Plan: what would happen?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from torchmove._paths import Path
from torchmove._records.blocks import Move, Moves
from torchmove._records.inventory import DeviceValue, Inventory
from torchmove.report import Reported, Sheet, Table, counted, readable_bytes, table


class Stay(NamedTuple):
    """A tensor that stays where it is, and why."""

    path: Path
    nbytes: int
    why: str


class Repoint(NamedTuple):
    """A remembered device that changes with the state."""

    value: DeviceValue
    new: torch.device | str


class Refusal(NamedTuple):
    """A reason why the state cannot move as asked, and what to do instead."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Instead: {self.remedy}"


class Note(NamedTuple):
    """Something worth knowing that does not stand in the way."""

    code: str
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}"


class Room(NamedTuple):
    """What the move needs on a device and what is free there (None: the device does not say)."""

    device: torch.device
    needs_bytes: int
    has_bytes: int | None

    def __str__(self) -> str:
        has = "" if self.has_bytes is None else f", {readable_bytes(self.has_bytes)} free"
        return f"{self.device}: needs {readable_bytes(self.needs_bytes)}{has}"


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Reported):
    """What would move, what stays and why, what stands in the way, and whether it fits."""

    inventory: Inventory
    target: torch.device
    moves: Moves
    reasons: Mapping[int, str]  # why a slot stays, by its index
    repoints: tuple[Repoint, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[Note, ...]
    rooms: tuple[Room, ...]
    placement: Sequence[torch.device]  # where each slot will be, in the inventory's order
    digests: tuple[Digest, ...] | None = None  # each slot's bytes, where asked for

    @property
    def ok(self) -> bool:
        return not self.refusals

    @cached_property
    def stays(self) -> tuple[Stay, ...]:
        slots = self.inventory.slots
        return tuple(Stay(slots[index].path, slots[index].nbytes, why) for index, why in sorted(self.reasons.items()))

    def archived(self) -> Plan:
        """The same, keeping nothing of the state alive."""
        repoints = tuple(Repoint(point.value._replace(holder=None), point.new) for point in self.repoints)
        return replace(self, inventory=self.inventory.archived(), repoints=repoints)

    @property
    def nbytes(self) -> int:
        return sum(room.needs_bytes for room in self.rooms)

    @property
    def tensors(self) -> int:
        return sum(1 for _ in self.moves.slots())

    def sheet(self) -> Sheet:
        verb = "cannot move" if self.refusals else "would move"
        title = f"{', '.join(self.inventory.roots)}: {verb} to {self.target}: {describe_moves(self)}"
        lines = [*map(str, self.rooms), *map(str, self.refusals), *map(str, self.notes)]
        lines += [f"{point.value.path}: {point.value.value!s} -> {point.new!s}" for point in self.repoints]
        moved = (self._row(move) for move in self.moves)
        return Sheet(
            title,
            tuple(lines),
            (
                table("moves", ("path", "from", "to", "bytes", "tensors"), moved, total=len(self.moves)),
                stays_table(self.stays),
            ),
        )

    def _row(self, move: Move) -> tuple[object, ...]:
        first = self.inventory.slots[move.block.slots[0]]
        return first.path, move.block.device, move.target, move.block.nbytes, len(move.block.slots)

    def facts(self) -> dict[str, Any]:
        slots = self.inventory.slots
        return {
            "target": str(self.target),
            "ok": self.ok,
            "bytes": self.nbytes,
            "moves": [
                {
                    "paths": [str(slots[index].path) for index in move.block.slots],
                    "from": str(move.block.device),
                    "to": str(move.target),
                    "bytes": move.block.nbytes,
                }
                for move in self.moves
            ],
            "stays": stays_facts(self.stays),
            "repoints": [
                {"path": str(point.value.path), "from": str(point.value.value), "to": str(point.new)}
                for point in self.repoints
            ],
            "refusals": [refusal._asdict() for refusal in self.refusals],
            "notes": [note._asdict() for note in self.notes],
            "rooms": [{**room._asdict(), "device": str(room.device)} for room in self.rooms],
        }


# The digest of what a tensor shows: two sums over its elements, one of them weighted by position.
Digest = tuple[int, int]


def describe_moves(plan: Plan) -> str:
    return f"{counted(plan.tensors, 'tensor')} in {counted(len(plan.moves), 'storage')}, {readable_bytes(plan.nbytes)}"


def stays_table(stays: Sequence[Stay]) -> Table:
    """By reason: one line says that all `step`s stay."""
    reasons: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        reasons[stay.why].append(stay)
    rows = [(len(same), sum(stay.nbytes for stay in same), why, same[0].path) for why, same in reasons.items()]
    return table("stays", ("tensors", "bytes", "why", "such as"), rows, total=len(rows))


def stays_facts(stays: Sequence[Stay]) -> list[dict[str, Any]]:
    return [{"path": str(stay.path), "bytes": stay.nbytes, "why": stay.why} for stay in stays]
