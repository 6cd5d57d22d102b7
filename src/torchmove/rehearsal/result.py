"""The result of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from torchmove.rehearsal.provenance import shown
from torchmove.report import Bar, Figure, Page, Point, Points, Reported, Sheet, counted, readable_bytes

_NOTES = {"synchronises", "decided"}
_ENDINGS = {"error", "dtype"}  # the kinds of what ends a step: `stopped` says the same
_UNFINISHED = {
    "error": "the step raised an error, which is not about devices",
    "device": "an error about devices",
    "limit": "a limit of the rehearsal, not an error of the step",
}


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
class Rehearsal(Reported):
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

    def headline(self) -> str:
        on_devices = self._listed(self.failing)
        count = counted(len(on_devices), "place")
        if not self.stopped:
            if on_devices:
                return f"{count} would fail on {self.device}"
            return f"No device error found: the step ran to its end on a simulated {self.device}"
        if self.ending == "refused":
            return "Incomplete: the step was not run"
        where = f"stopped at {self.stopped_at}" if self.stopped_at else "not rehearsed to the end"
        before = f"; before that, {count} would fail on {self.device}" if on_devices else ""
        return f"Incomplete: {where} ({_UNFINISHED[self.ending]}){before}"

    def _listed(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Without what `stopped` says."""
        return tuple(each for each in findings if not (self.stopped and each.kind in _ENDINGS))

    def _said(self) -> tuple[str, ...]:
        """What is said beside the findings: why it stopped, with which values it ran, what was assumed."""
        kind, again, why = self.values.partition(": ")
        return (
            *((self.stopped,) if self.stopped else ()),
            *((f"Computed with {kind} values: {why}",) if again else ()),
            *(f"Assumed: {each}" for each in self.assumed),
        )

    def sheet(self) -> Sheet:
        lines = [*map(str, self._listed(self.findings)), *self._said()]
        parts = ", ".join(f"{part} {readable_bytes(size)}" for part, size in self.peak.items())
        size = f"{readable_bytes(self.peak_bytes)}" + (f" ({parts})" if parts else "")
        lines += [f"{self._of_peak()}: {size}"] if self.ending != "refused" else []
        return Sheet(self.headline(), tuple(lines))

    def _of_peak(self) -> str:
        return f"Peak memory on {self.device}{' until it stopped' if self.stopped else ''}"

    def page(self) -> Page:
        failing = tuple(map(_point, self._listed(self.failing)))
        notes = tuple(_point(each) for each in self.findings if each.is_note)
        count = counted(len(failing), "place")
        return Page(
            "Rehearsal",
            self.headline(),
            lines=self._said(),
            figures=(
                Figure("would fail", "incomplete", f"{count} so far", "bad")
                if self.stopped
                else Figure("would fail", count, "", "good" if self.ok else "bad"),
                Figure("peak memory", readable_bytes(self.peak_bytes), self._of_peak().removeprefix("Peak memory ")),
            ),
            points=(Points("Would fail", failing, "bad"), Points("Notes", notes)),
            bars=(Bar(self._of_peak(), tuple(self.peak.items())),),
        )

    def facts(self) -> dict[str, Any]:
        return {
            "device": str(self.device),
            "ok": self.ok,
            "ending": self.ending,
            "findings": [finding._asdict() for finding in self.findings],
            "peak_bytes": self.peak_bytes,
            "peak": self.peak,
            "stopped": self.stopped,
            "stopped_at": self.stopped_at,
            "values": self.values,
            "assumed": list(self.assumed),
        }


def _point(finding: Finding) -> Point:
    is_cell = shown(finding.file).startswith("In[")
    place = shown(finding.file) if is_cell else finding.file
    return Point(finding.kind, f"{place}:{finding.line}", finding.why, finding.remedy, quote=finding.code.strip())
