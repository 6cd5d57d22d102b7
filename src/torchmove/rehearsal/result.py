"""The Rehearsal: what would happen to this step on that device?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torchmove.report import Bar, Figure, Page, Point, Points, Reported, Sheet, counted, readable_bytes


class Finding(NamedTuple):
    """A place in the user's code that would fail; or, of the kind `synchronises`, one that is worth knowing."""

    file: str
    line: int
    kind: str
    code: str
    why: str
    remedy: str

    @property
    def is_note(self) -> bool:
        return self.kind == "synchronises"

    def __str__(self) -> str:
        where = f"{os.path.basename(self.file)}:{self.line}"
        return f"{where}  {self.code}\n      {self.kind}: {self.why}\n      fix: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Rehearsal(Reported):
    """What a step would do on a device that need not be there.

    Attributes:
        device: that device.
        findings: each with `file`, `line`, `kind`, `code` (the line itself), `why` and `remedy`.
        peak: bytes by part, at the moment when they were most.
        stopped: why the step could not be followed to its end, if so.
    """

    device: torch.device
    findings: tuple[Finding, ...]
    peak: dict[str, int]  # bytes by part, at the moment when they were most
    stopped: str  # why the step could not be followed to its end, if so

    @property
    def ok(self) -> bool:
        """The step runs to its end and nothing would fail."""
        return not self.stopped and all(finding.is_note for finding in self.findings)

    @property
    def peak_bytes(self) -> int:
        """The most memory that the step holds on the device at any moment."""
        return sum(self.peak.values())

    def sheet(self) -> Sheet:
        failing = sum(not finding.is_note for finding in self.findings)
        verb = "would fail" if failing else "fails"
        title = f"{counted(failing, 'place')} {verb} on {self.device}" if failing else f"the step runs on {self.device}"
        if self.stopped:
            title = f"{counted(failing, 'place')} would fail on {self.device}, and the rehearsal stopped early"
        lines = [str(finding) for finding in self.findings]
        if self.stopped:
            lines.append(self.stopped)
        parts = ", ".join(f"{part} {readable_bytes(size)}" for part, size in self.peak.items())
        lines.append(
            f"peak memory on {self.device}: {readable_bytes(self.peak_bytes)}" + (f" ({parts})" if parts else "")
        )
        return Sheet(title, tuple(lines))

    def page(self) -> Page:
        failing = tuple(_point(each) for each in self.findings if not each.is_note)
        notes = tuple(_point(each) for each in self.findings if each.is_note)
        count = counted(len(failing), "place")
        return Page(
            "Rehearsal",
            self.sheet().title,
            lines=(self.stopped,) if self.stopped else (),
            figures=(
                Figure("would fail", count, "stopped early" if self.stopped else "", "good" if self.ok else "bad"),
                Figure("peak memory", readable_bytes(self.peak_bytes), f"on {self.device}"),
            ),
            points=(Points("Would fail", failing, "bad"), Points("Worth knowing", notes)),
            bars=(Bar(f"Memory on {self.device}, when it is most", tuple(self.peak.items())),),
        )

    def facts(self) -> dict[str, Any]:
        return {
            "device": str(self.device),
            "ok": self.ok,
            "findings": [finding._asdict() for finding in self.findings],
            "peak_bytes": self.peak_bytes,
            "peak": self.peak,
            "stopped": self.stopped,
        }


def _point(finding: Finding) -> Point:
    return Point(
        finding.kind, f"{finding.file}:{finding.line}", finding.why, finding.remedy, quote=finding.code.strip()
    )
