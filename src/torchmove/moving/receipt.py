"""The Receipt: the result of a move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torchmove.planning.plan import Plan
from torchmove.progress import Stage
from torchmove.results import Result
from torchmove.surveying.paths import Path

if TYPE_CHECKING:
    from torchmove.verifying.verify import Verdict


class Held(NamedTuple):
    """A storage on the old device that something outside the state keeps alive."""

    path: Path
    nbytes: int
    by: str


class Leftover(Protocol):
    """Old storages that were not freed."""

    def find_holders(self) -> tuple[Held, ...]: ...


@dataclass(frozen=True, eq=False, repr=False)
class Receipt(Result):
    """What was moved, how fast, what stayed and why, and which old storages are still alive.

    A receipt can be kept: it refers to tensors by id and keeps none of them alive.

    Attributes:
        plan: the plan that was carried out.
        mover: the name of the mover.
        why: why this mover was chosen.
        seconds: how long the move took, without planning.
        held: storages on the old device that something outside the state keeps alive: `path`, `nbytes`, and `by` what.
            Small ones are not searched for, nor is anything when the search would take long: `find_holders` does that.
        verdict: the verification, made before the old copy was freed; None with `verify="off"`.
    """

    plan: Plan
    mover: str
    why: str  # this mover was chosen
    seconds: float
    held: tuple[Held, ...]
    verdict: Verdict | None = None
    stages: tuple[Stage, ...] = ()  # of the move; the plan has the earlier ones
    _leftover: Leftover | None = None

    def find_holders(self) -> tuple[Held, ...]:
        """Search the whole process for what keeps old storages alive, however long that takes.

        Returns:
            As `held`, without storages that have been freed since.

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
        """Number of bytes moved."""
        return self.plan.nbytes

    @property
    def bytes_per_second(self) -> float:
        """The rate over the whole move."""
        return self.moved_bytes / self.seconds if self.seconds else 0.0
