"""Every exception that torchmove raises.

TorchmoveError
|-- MoveRefused         the state cannot move as requested; nothing was changed
|-- MoveFailed          the move failed while it copied or rebound tensors; it was rolled back
|-- VerificationError   the state differs from what was expected; the verdict lists the findings
|-- CheckpointRefused   a checkpoint file is damaged, or cannot be written as requested; nothing was written
`-- CannotMeasure       torchmove bench cannot measure this machine as requested
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmove.planning.plan import Refusal
    from torchmove.verifying.verify import Finding, Verdict


class TorchmoveError(Exception):
    """The base class of all exceptions of this library."""


class MoveRefused(TorchmoveError):
    """The state cannot move as requested. Nothing was changed.

    The message has one line per reason: where many paths share one, it names the first path and a count.

    Attributes:
        refusals: every refusal, each with `code`, `path`, `why` and `remedy`.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        reasons = lines_by_reason(self.refusals)
        count = "1 reason" if len(reasons) == 1 else f"{len(reasons)} reasons"
        super().__init__("\n  ".join([f"move refused for {count}; nothing was changed:", *reasons]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refusals,)  # not the message, which `__init__` makes


def lines_by_reason(refusals: Sequence[Refusal | Finding]) -> list[str]:
    """A line for each reason, with the first path and a count where several paths share it."""
    alike: dict[tuple[str, str, str], list[Refusal | Finding]] = {}
    for refusal in refusals:
        remedy = refusal.remedy.replace(refusal.path, "...") if _assigns(refusal) else refusal.remedy
        alike.setdefault((refusal.code, refusal.why, remedy), []).append(refusal)
    return [_line(some) for some in alike.values()]


def _assigns(refusal: Refusal | Finding) -> bool:
    """Whether the remedy is an assignment to the path, and so differs from path to path."""
    return refusal.remedy.startswith(f"{refusal.path} = ")


def _line(alike: Sequence[Refusal | Finding]) -> str:
    first, *others = alike
    if not others:
        return str(first)
    remedy = f"{first.remedy}, and the same for the others" if _assigns(first) else first.remedy
    paths = f"{len(alike)} paths ({first.path} ... and {len(others)} more)"
    return f"{first.code} at {paths}: {first.why}. Fix: {remedy}"


class MoveFailed(TorchmoveError):
    """The move failed and was rolled back: every tensor has the bytes, device and metadata that it had before.

    If the rollback failed too, `not_undone` says what is left, and the state must not be used: load it again.

    Attributes:
        stage: what the move was doing when it failed.
        why: what was raised.
        not_undone: what could not be rolled back; empty if the rollback was complete.
    """

    def __init__(self, stage: str, why: str, *, not_undone: str = "") -> None:
        self.stage, self.why, self.not_undone = stage, why, not_undone
        end, remedy = "and was rolled back; nothing has changed", ""
        if not_undone:
            end = f"and could not be rolled back ({not_undone}), so part of the state may have moved"
            remedy = ". Fix: load the state again"
        super().__init__(f"the move failed while {stage} {end}: {why}{remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), not_undone=self.not_undone), (self.stage, self.why)


class VerificationError(TorchmoveError):
    """The state differs from what was expected. If a move found this, it rolled the move back.

    Attributes:
        verdict: the verdict with all findings.
    """

    def __init__(self, verdict: Verdict, *, rolled_back: bool = False) -> None:
        self.verdict = verdict
        suffix = "\nThe move was rolled back; nothing has changed." if rolled_back else ""
        super().__init__(f"{verdict}{suffix}")


class CheckpointRefused(TorchmoveError):
    """A checkpoint file cannot be read or written as requested; `refusals` holds the reasons and remedies."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(map(str, self.refusals)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refusals,)


class CannotMeasure(TorchmoveError):
    """`torchmove bench` cannot measure this machine as requested; the message says why and what to do instead."""
