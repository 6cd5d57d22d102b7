"""The Receipt: what was done, and by which mover?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchmove._paths import Path
from torchmove._records.blocks import Block, Moves
from torchmove._records.columns import Rows
from torchmove._records.planned import Plan, describe_moves, describe_tensors, stays_figure, stays_table
from torchmove._records.stages import Stage, stages_facts
from torchmove._records.verdict import Verdict
from torchmove.report import (
    Figure,
    Page,
    Point,
    Points,
    Reported,
    Sheet,
    Timeline,
    counted,
    first_of,
    listed,
    readable_bytes,
    readable_seconds,
    table,
)


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
    returns: `finish` waits for them, and changes nothing either. Where the move has failed, `drop` lets go of what
    they would have needed: the error may be kept, and hold the mover.
    """

    name: str

    def copy(self, load: Load, advance: Advance) -> list[Tensor]: ...

    def finish(self) -> None: ...

    def drop(self) -> None: ...


class Held(NamedTuple):
    """Memory on the old device that something outside the state still looks at."""

    path: Path
    nbytes: int
    by: str


class Leftover(Protocol):
    """Old memory that did not come free."""

    def find_holders(self) -> tuple[Held, ...]: ...


@dataclass(frozen=True, eq=False, repr=False)
class Receipt(Reported):
    """What was moved, how fast, what stayed and why, and what memory the old device could not give back.

    A receipt may be kept: it remembers tensors by their ids and keeps none of them alive.

    Attributes:
        plan: what was carried out.
        mover: which mover carried it.
        why: this mover was taken.
        seconds: how long it took, planning left out.
        held: memory on the old device that something outside the state still looks at: `path`, `nbytes`, `by` whom.
            That is not searched for where there is little of it, or the search would take long: `find_holders` does.
        verdict: what was found afterwards, before the old copy was let go; None with `verify="off"`.
    """

    plan: Plan
    mover: str
    why: str  # this mover was taken
    seconds: float
    held: tuple[Held, ...]
    verdict: Verdict | None = None
    stages: tuple[Stage, ...] = ()  # of the move; the plan has those before
    _leftover: Leftover | None = None

    def find_holders(self) -> tuple[Held, ...]:
        """Search the whole process for who holds old memory now, however long that takes.

        Returns:
            As `held`; what has come free since is left out.

        Examples:
            >>> import torch
            >>> from torchmove.testing import refresh
            >>> model = torch.nn.Linear(2, 3, bias=False)
            >>> saved = model.state_dict()
            >>> [held.by for held in refresh(model).find_holders()]
            ["a tensor of shape (3, 2) under 'weight' in OrderedDict of 1"]
        """
        return self._leftover.find_holders() if self._leftover is not None else ()

    @property
    def moved_bytes(self) -> int:
        """Bytes that were moved."""
        return self.plan.nbytes

    @property
    def bytes_per_second(self) -> float:
        """The rate, all stages counted in."""
        return self.moved_bytes / self.seconds if self.seconds else 0.0

    def sheet(self) -> Sheet:
        plan, roots = self.plan, listed(self.plan.inventory.roots)
        if not plan.inventory.slots:
            title = f"{roots}: no tensors found, " + ("devices re-pointed" if plan.repoints else "nothing moved")
        elif not plan.moves:
            title = f"{roots}: all on {plan.target} already, nothing moved"
        else:
            title = (
                f"{roots}: moved to {plan.target}: {describe_moves(plan)} in "
                f"{self.seconds:.3g} s ({readable_bytes(int(self.bytes_per_second))}/s, {self.mover} mover: {self.why})"
            )
        lines = [*plan.repointed(), *first_of(plan.notes)]
        if self.verdict is not None:
            lines.append(str(self.verdict.sheet().title))
        still = table("still held on the old device", ("path", "bytes", "by"), self.held, total=len(self.held))
        return Sheet(title, tuple(lines), (stays_table(plan.stays), still))

    def page(self) -> Page:
        plan, roots = self.plan, listed(self.plan.inventory.roots)
        held = tuple(Point("", str(path), f"{readable_bytes(size)}: {by}") for path, size, by in self.held)
        return Page(
            "Receipt",
            f"{roots}: moved to {plan.target}" if plan.moves else f"{roots}: nothing had to move to {plan.target}",
            figures=tuple(self._figures()),
            points=(Points("Still held on the old device", held), *plan.told()),
            timeline=self._timeline(),
            tables=plan.page_tables(),
            state=plan.drawn(),
        )

    def _figures(self) -> Iterator[Figure]:
        yield Figure("moved", readable_bytes(self.moved_bytes), describe_tensors(self.plan))
        yield stays_figure(self.plan.stays)
        if self.plan.moves:
            rate = f"{readable_bytes(int(self.bytes_per_second))}/s"
            yield Figure("took", readable_seconds(self.seconds), f"{rate}, {self.mover} mover: {self.why}")
        held = sum(each.nbytes for each in self.held)
        yield Figure("still held on the old device", readable_bytes(held), tone="bad" if held else "good")
        if self.verdict is not None:
            found = len(self.verdict.findings)
            said = f"checked for {', '.join(self.verdict.checked)}"
            yield Figure("verified", counted(found, "finding"), said, "bad" if found else "good")

    def _timeline(self) -> Timeline:
        stages = (*self.plan.stages, *self.stages)
        return Timeline("When", tuple((stage.name, stage.seconds, self._said_of(stage)) for stage in stages))

    def _said_of(self, stage: Stage) -> str:
        if stage.name != "copy" or not stage.seconds:
            return ""
        ways = listed([f"{home} to {target}" for home, target in self.plan.moves.ways])
        return f"{ways}: {readable_bytes(self.moved_bytes)}, {readable_bytes(int(self.moved_bytes / stage.seconds))}/s"

    def facts(self) -> dict[str, Any]:
        return {
            "mover": self.mover,
            "why": self.why,
            "seconds": self.seconds,
            "bytes_per_second": self.bytes_per_second,
            "stages": stages_facts((*self.plan.stages, *self.stages)),
            "held": [{**held._asdict(), "path": str(held.path)} for held in self.held],
            "verdict": self.verdict.facts() if self.verdict else None,
            "plan": self.plan.facts(),
        }
