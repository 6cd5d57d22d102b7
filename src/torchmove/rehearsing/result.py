"""The result of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from torchmove.rehearsing.evidence import Evidence
from torchmove.rehearsing.provenance import shown
from torchmove.results import Result

_NOTES = {"synchronizes", "decided"}


class Finding(NamedTuple):
    """A line of the user's code that would fail, or a note (kinds `synchronizes` and `decided`)."""

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
    """The result of a rehearsal. True if the step finished, nothing would fail, and its memory fits `max_memory`.

    Attributes:
        device: the simulated device.
        findings: each with `file`, `line`, `kind`, `code` (the line itself), `why` and `remedy`.
        peak: the peak memory on the device in bytes, by part.
        ending: "finished", or why the step stopped: "error", an error of its own; "device", something that fails on
            the device; "limit", something that a rehearsal does not support; "refused", a state that cannot
            be moved.
        stopped: why the step did not finish; "" if it did.
        stopped_at: the file and line where it stopped, as text.
        stopped_in: the same as a path and a number; None if it did not stop at a line.
        values: "real" or "shapes": what the step was computed with, and why.
        assumed: assumptions about the objects and values.
        evidence: for each finding what `--fix` needs to edit the source, if it was recorded.
        subject: what was rehearsed: "the step", or the name of a script.
        extent: how far it ran, if it finished: "ran to its end", or the number of optimizer steps of a script.
        max_bytes: the `max_memory` that was asked for.
    """

    device: torch.device
    findings: tuple[Finding, ...]
    peak: dict[str, int]
    stopped: str
    ending: str = "finished"
    stopped_at: str = ""
    stopped_in: tuple[str, int] | None = None
    values: str = "shapes"
    assumed: tuple[str, ...] = ()
    evidence: tuple[tuple[Evidence, ...], ...] = ()
    subject: str = "the step"
    extent: str = "ran to its end"
    max_bytes: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the step finished, nothing would fail, and the peak memory is not above `max_bytes`."""
        return not self.stopped and not self.failing and self.fits

    @property
    def fits(self) -> bool:
        """Whether the peak memory is not above `max_bytes`."""
        return self.max_bytes is None or self.peak_bytes <= self.max_bytes

    def __bool__(self) -> bool:
        return self.ok

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings without the notes."""
        return tuple(finding for finding in self.findings if not finding.is_note)

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the step on the device, in bytes."""
        return sum(self.peak.values())

    def because(self, why_not_real: str) -> Rehearsal:
        """A copy that says why the step was not rerun with real values."""
        return replace(self, stopped=f"{self.stopped}\n      not run with real values: {why_not_real}")

    def of_script(self, name: str, extent: str) -> Rehearsal:
        """A copy that names the script and says how far it ran."""
        return replace(self, subject=name, extent=extent)
