"""The Receipt: what was done, and by which mover?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove._paths import Path
from torchmove._records.blocks import Block, Moves
from torchmove._records.columns import Rows
from torchmove._records.planned import Plan, describe_moves, stays_table
from torchmove._records.slots import Windows
from torchmove._records.verdict import Verdict
from torchmove.report import Reported, Sheet, readable_bytes, table


class Cargo(NamedTuple):
    """A block that a mover shall copy; `source` is a tensor that looks at it.

    `dense`: the source is the only one, it is contiguous and shows all of the block, so the copy can be its like: same
    dtype, same shape. Otherwise the copy is the reached bytes of the block, in a row.
    """

    source: Tensor
    block: Block
    target: torch.device
    dense: bool


class Load(Rows[Cargo]):
    """All that a mover shall copy, in columns."""

    def __init__(self, sources: Sequence[Tensor], moves: Moves, dense: Sequence[bool]) -> None:
        self.sources, self.moves, self.dense = sources, moves, dense

    def __len__(self) -> int:
        return len(self.sources)

    def some(self, indices: Sequence[int]) -> Load:
        """A part of it, in that order."""
        firsts = [self.moves.firsts[index] for index in indices]
        moves = Moves(self.moves.blocks, firsts, self.moves.placement)
        return Load([self.sources[index] for index in indices], moves, [self.dense[index] for index in indices])

    def row(self, index: int) -> Cargo:
        return Cargo(self.sources[index], *self.moves[index], self.dense[index])


Advance = Callable[[int], object]


class Mover(Protocol):
    """Copies blocks. Returns for each a tensor on the target from which the windows are cut; changes nothing.

    `advance` is told how many bytes have arrived since it was told last. Copies may still be under way when `copy`
    returns: `finish` waits for them, and changes nothing either.
    """

    name: str

    def copy(self, load: Load, advance: Advance) -> list[Tensor]: ...

    def finish(self) -> None: ...


class Held(NamedTuple):
    """Memory on the old device that something outside the state still looks at."""

    path: Path
    nbytes: int
    by: str


@dataclass(frozen=True, eq=False, repr=False)
class Receipt(Reported):
    """What was moved, how fast, what stayed and why, and what memory the old device could not give back.

    A receipt may be kept: it remembers tensors by their ids and keeps none of them alive.
    """

    plan: Plan
    mover: str
    why: str  # this mover was taken
    seconds: float
    held: tuple[Held, ...]
    windows: Windows  # what each tensor showed before, in the inventory's order
    verdict: Verdict | None = None

    @property
    def moved_bytes(self) -> int:
        return self.plan.nbytes

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds if self.seconds else 0.0

    def sheet(self) -> Sheet:
        plan = self.plan
        if not plan.inventory.slots:
            title = f"{', '.join(plan.inventory.roots)}: no tensors found, nothing moved"
        elif not plan.moves:
            title = f"{', '.join(plan.inventory.roots)}: all on {plan.target} already, nothing moved"
        else:
            title = (
                f"{', '.join(plan.inventory.roots)}: moved to {plan.target}: {describe_moves(plan)} in "
                f"{self.seconds:.3g} s ({readable_bytes(int(self.bytes_per_second))}/s, {self.mover} mover: {self.why})"
            )
        lines = [f"{point.value.path}: {point.value.value!s} -> {point.new!s}" for point in plan.repoints]
        lines += map(str, plan.notes)
        if self.verdict is not None:
            lines.append(str(self.verdict.sheet().title))
        still = table("still held on the old device", ("path", "bytes", "by"), self.held, total=len(self.held))
        return Sheet(title, tuple(lines), (stays_table(plan.stays), still))

    def facts(self) -> dict[str, Any]:
        return {
            "mover": self.mover,
            "why": self.why,
            "seconds": self.seconds,
            "bytes_per_second": self.bytes_per_second,
            "held": [{**held._asdict(), "path": str(held.path)} for held in self.held],
            "verdict": self.verdict.facts() if self.verdict else None,
            "plan": self.plan.facts(),
        }
