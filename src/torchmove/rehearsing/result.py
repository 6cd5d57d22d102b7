"""The result of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from torchmove.rehearsing.provenance import shown
from torchmove.results import Result

_NOTES = {"synchronises", "decided"}


class Finding(NamedTuple):
    """A line of the user's code that would fail; or a note, of the kinds `synchronises` and `decided`."""

    file: str
    line: int
    kind: str
    code: str
    why: str
    remedy: str

    @property
    def is_note(self) -> bool:
        return self.kind in _NOTES

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}  {self.code}\n      {self.kind}: {self.why}\n      Fix: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Rehearsal(Result):
    """What a step would do on a device that need not be there. True if it ran to its end and nothing would fail.

    Attributes:
        device: that device.
        findings: each with `file`, `line`, `kind`, `code` (the line itself), `why` and `remedy`.
        peak: bytes by part, at the moment when they were most.
        ending: "finished", or what kept the step from its end: "error", an error of its own; "device", a dtype that the
            device does not have; "limit", something that a rehearsal cannot follow; "refused", a state that cannot be
            moved.
        stopped: why the step did not run to its end, if so.
        stopped_at: the file and line where it stopped.
        values: "real" or "shapes": what the step was computed with, and why.
        assumed: what was assumed of the objects and of values.
    """

    device: torch.device
    findings: tuple[Finding, ...]
    peak: dict[str, int]
    stopped: str
    ending: str = "finished"
    stopped_at: str = ""
    values: str = "shapes"
    assumed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """The step ran to its end and nothing would fail."""
        return not self.stopped and not self.failing

    def __bool__(self) -> bool:
        return self.ok

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings without the notes."""
        return tuple(finding for finding in self.findings if not finding.is_note)

    @property
    def peak_bytes(self) -> int:
        """The most memory that the step holds on the device at any moment."""
        return sum(self.peak.values())

    def because(self, why_not_real: str) -> Rehearsal:
        """The same, with the reason why it was not run again with real values."""
        return replace(self, stopped=f"{self.stopped}\n      Not run with real values: {why_not_real}")
