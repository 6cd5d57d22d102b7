"""The Plan: what would happen?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from torchmove._paths import Path
from torchmove._records.blocks import Move, Moves
from torchmove._records.drawing import drawn, with_moves, with_places
from torchmove._records.inventory import DeviceValue, Inventory
from torchmove._records.stages import Stage
from torchmove.report import (
    Bar,
    Figure,
    Page,
    Point,
    Points,
    Reported,
    Sheet,
    State,
    Table,
    counted,
    first_of,
    listed,
    readable_bytes,
    table,
)


class Stay(NamedTuple):
    """A tensor that stays where it is, and why."""

    path: Path
    nbytes: int
    why: str


class Repoint(NamedTuple):
    """A remembered device that changes with the state."""

    value: DeviceValue
    new: torch.device | str | int


class Refusal(NamedTuple):
    """A reason why the state cannot move as asked, and what to do instead."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Fix: {self.remedy}"


class Note(NamedTuple):
    """Something worth knowing that does not stand in the way."""

    code: str
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}"


class Adopted(NamedTuple):
    """What modules changed in their own `_apply`: tensors that they dropped and added, by their ids, where those that
    they added belong, and where parameters were that they replaced. The notes say so."""

    dropped: frozenset[int] = frozenset()
    added: Mapping[int, torch.device] = {}  # nobody writes to it
    replaced: Mapping[int, str] = {}
    notes: tuple[Note, ...] = ()


_NOTHING_ADOPTED = Adopted()


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
    """What would move, what stays and why, what stands in the way, and whether it fits. It holds the state.

    A plan is true if nothing stands in the way.

    Attributes:
        target: where to.
        moves: a row for each storage that would move.
        refusals: what stands in the way, each with `code`, `path`, `why` and `remedy`.
        notes: what is worth knowing, each with `code`, `path` and `why`.
        rooms: what is needed on each device, and what is free there.
        repoints: remembered devices that would change too.
    """

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
    stages: tuple[Stage, ...] = ()
    adopted: Adopted = _NOTHING_ADOPTED

    @property
    def ok(self) -> bool:
        """Nothing stands in the way."""
        return not self.refusals

    def __bool__(self) -> bool:
        return self.ok

    @cached_property
    def stays(self) -> tuple[Stay, ...]:
        """What stays where it is, each with `path`, `nbytes` and `why`."""
        slots = self.inventory.slots
        return tuple(Stay(slots[index].path, slots[index].nbytes, why) for index, why in sorted(self.reasons.items()))

    def archived(self) -> Plan:
        """The same, keeping nothing of the state alive."""
        repoints = tuple(Repoint(point.value._replace(holder=None), point.new) for point in self.repoints)
        return replace(self, inventory=self.inventory.archived(), repoints=repoints)

    def with_adopted(self, adopted: Adopted) -> Plan:
        """The same, carried out, with what modules changed by themselves."""
        return replace(self, adopted=adopted, notes=(*self.notes, *adopted.notes)) if any(adopted) else self

    @property
    def nbytes(self) -> int:
        """Bytes that would move."""
        return sum(room.needs_bytes for room in self.rooms)

    @property
    def tensors(self) -> int:
        """How many tensors would move."""
        return sum(1 for _ in self.moves.slots())

    def sheet(self) -> Sheet:
        verb = "cannot move" if self.refusals else "would move"
        title = f"{listed(self.inventory.roots)}: {verb} to {self.target}: {describe_moves(self)}"
        lines = (*first_of(self.rooms), *first_of(self.refusals), *first_of(self.notes), *self.repointed())
        moved = (self._row(move) for move in self.moves)
        return Sheet(
            title,
            lines,
            (
                table("moves", ("path", "from", "to", "bytes", "tensors"), moved, total=len(self.moves)),
                stays_table(self.stays),
            ),
        )

    def repointed(self) -> tuple[str, ...]:
        return first_of([f"{point.value.path}: {point.value.value!s} -> {point.new!s}" for point in self.repoints])

    def page(self) -> Page:
        roots, count = listed(self.inventory.roots), len(self.refusals)
        figures = (
            Figure("would move", readable_bytes(self.nbytes), describe_tensors(self)),
            stays_figure(self.stays),
            Figure("refusals", str(count), "it cannot move like this" if count else "", "bad" if count else "good"),
        )
        return Page(
            "Plan",
            f"{roots}: {'cannot' if count else 'would'} move to {self.target}",
            figures=figures,
            points=(Points("Refused", tuple(_refusal_point(each) for each in self.refusals), "bad"), *self.told()),
            bars=tuple(map(_room_bar, self.rooms)),
            tables=self.page_tables(),
            state=self.drawn(),
        )

    def told(self) -> tuple[Points, ...]:
        notes = (Point(note.code, note.path, note.why) for note in self.notes)
        points = (
            Point("", str(point.value.path), f"{point.value.value!s} to {point.new!s}") for point in self.repoints
        )
        return Points("Notes", tuple(notes)), Points("Remembered devices that change", tuple(points))

    def page_tables(self) -> tuple[Table, ...]:
        rows = [
            (home, target, len(indices), readable_bytes(sum(self.moves.nbytes[index] for index in indices)))
            for (home, target), indices in self.moves.ways.items()
        ]
        moves = table("What moves", ("from", "to", "storages", "size"), rows, total=len(rows))
        return moves, stays_table(self.stays, title="What stays, and why", size=readable_bytes)

    def drawn(self) -> State:
        """The tensors, before and after."""
        state = with_places(drawn(self.inventory), self.placement, ("before", "after"))
        return with_moves(state, self.moves.slots(), self.reasons)

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
    return f"{describe_tensors(plan)}, {readable_bytes(plan.nbytes)}"


def describe_tensors(plan: Plan) -> str:
    return f"{counted(plan.tensors, 'tensor')} in {counted(len(plan.moves), 'storage')}"


def stays_figure(stays: Sequence[Stay]) -> Figure:
    return Figure("stays", readable_bytes(sum(stay.nbytes for stay in stays)), counted(len(stays), "tensor"))


def _refusal_point(refusal: Refusal) -> Point:
    return Point(refusal.code, refusal.path, refusal.why, refusal.remedy)


def _room_bar(room: Room) -> Bar:
    parts = [("needed", room.needs_bytes)]
    if room.has_bytes is not None:
        parts.append(("free besides", max(0, room.has_bytes - room.needs_bytes)))
    return Bar(f"Room on {room.device}", tuple(parts))


def stays_table(
    stays: Sequence[Stay], *, title: str = "stays", size: Callable[[int], object] = lambda nbytes: nbytes
) -> Table:
    """By reason: one line says that all `step`s stay."""
    reasons: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        reasons[stay.why].append(stay)
    rows = [(len(same), size(sum(stay.nbytes for stay in same)), why, same[0].path) for why, same in reasons.items()]
    return table(title, ("tensors", "bytes", "why", "such as"), rows, total=len(rows))


def stays_facts(stays: Sequence[Stay]) -> list[dict[str, Any]]:
    return [{"path": str(stay.path), "bytes": stay.nbytes, "why": stay.why} for stay in stays]
