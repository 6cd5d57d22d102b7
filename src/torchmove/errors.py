"""Everything torchmove raises.

TorchmoveError
|-- MoveRefused         the plan holds refusals; nothing was touched
|-- MoveFailed          copying or committing failed; rolled back, nothing changed
|-- VerificationError   the state is not what it should be; the verdict says where
|-- CheckpointRefused   a checkpoint file is not sound, or cannot be written as asked; nothing was written
`-- CannotMeasure       torchmove bench has nothing to measure here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchmove.planning.plan import Refusal
    from torchmove.verifying.verdict import Verdict


class TorchmoveError(Exception):
    """The root of all errors of this library."""


class MoveRefused(TorchmoveError):
    """The state cannot move as asked, and nothing was touched.

    Attributes:
        refusals: every reason, each with `code`, `path`, `why` and `remedy`.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        reasons = "\n".join(f"  {refusal}" for refusal in self.refusals)
        count = "1 reason" if len(self.refusals) == 1 else f"{len(self.refusals)} reasons"
        super().__init__(f"nothing was moved, for {count}:\n{reasons}")


class MoveFailed(TorchmoveError):
    """The move broke off and was rolled back: the state is as it was, bit for bit.

    Unless something stood in the way of that too: then `not_undone` says what, and the state must not be used further.

    Attributes:
        stage: what was going on when it broke off.
        not_undone: what could not be rolled back; empty, but for the worst case.
    """

    def __init__(self, stage: str, why: str, *, not_undone: str = "") -> None:
        self.stage, self.not_undone = stage, not_undone
        end = "and was rolled back, nothing has changed"
        if not_undone:
            end = f"and could not be rolled back ({not_undone}): part of the state may have moved, load it again"
        super().__init__(f"the move failed while {stage} {end}: {why}")


class VerificationError(TorchmoveError):
    """The state is not what it should be. After a move it has been rolled back.

    Attributes:
        verdict: it holds the findings.
    """

    def __init__(self, verdict: Verdict, *, rolled_back: bool = False) -> None:
        self.verdict = verdict
        suffix = "\nThe move was rolled back, nothing has changed." if rolled_back else ""
        super().__init__(f"{verdict}{suffix}")


class CheckpointRefused(TorchmoveError):
    """A checkpoint file cannot be read or written as asked. `refusals` holds the reasons, each with its remedy."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(map(str, self.refusals)))


class CannotMeasure(TorchmoveError):
    """This machine cannot be measured as asked; says why, and what to do instead."""
