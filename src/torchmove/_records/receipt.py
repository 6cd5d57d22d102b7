"""The Receipt: what was done, and by which mover?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from torchmove._paths import Path
from torchmove._records.inventory import Slot, Window
from torchmove._records.planned import Move, Plan, describe_moves, stays_table
from torchmove._records.verdict import Verdict
from torchmove.report import Reported, Sheet, readable_bytes, table


class Mover(Protocol):
    """Copies blocks. Returns for each move a base on the target from which the windows are cut; changes nothing."""

    name: str

    def copy(self, moves: Sequence[Move], slots: Sequence[Slot]) -> list[Tensor]: ...


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
    seconds: float
    held: tuple[Held, ...]
    windows: tuple[Window, ...]  # what each tensor showed before, in the inventory's order
    verdict: Verdict | None = None

    @property
    def moved_bytes(self) -> int:
        return self.plan.nbytes

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds if self.seconds else 0.0

    def sheet(self) -> Sheet:
        plan = self.plan
        if not plan.moves:
            title = f"{', '.join(plan.inventory.roots)}: all on {plan.target} already, nothing moved"
        else:
            title = (
                f"{', '.join(plan.inventory.roots)}: moved to {plan.target}: {describe_moves(plan)} in "
                f"{self.seconds:.3g} s ({readable_bytes(int(self.bytes_per_second))}/s, {self.mover} mover)"
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
            "seconds": self.seconds,
            "bytes_per_second": self.bytes_per_second,
            "held": [{**held._asdict(), "path": str(held.path)} for held in self.held],
            "verdict": self.verdict.facts() if self.verdict else None,
            "plan": self.plan.facts(),
        }
