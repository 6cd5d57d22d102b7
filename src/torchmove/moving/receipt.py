"""The Receipt: what was done, and by which mover?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torchmove.planning.plan import Plan
from torchmove.progress import Stage
from torchmove.results import Result
from torchmove.surveying.paths import Path

if TYPE_CHECKING:
    from torchmove.verifying.verdict import Verdict


class Held(NamedTuple):
    """Memory on the old device that something outside the state still looks at."""

    path: Path
    nbytes: int
    by: str


class Leftover(Protocol):
    """Old memory that did not come free."""

    def find_holders(self) -> tuple[Held, ...]: ...


@dataclass(frozen=True, eq=False, repr=False)
class Receipt(Result):
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
