"""The Rehearsal: what would happen to this step on that device?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torchmove.report import Reported, Sheet, counted, readable_bytes


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
    """What a step would do on a device that need not be there."""

    device: torch.device
    findings: tuple[Finding, ...]
    peak: dict[str, int]  # bytes by part, at the moment when they were most
    stopped: str  # why the step could not be followed to its end, if so

    @property
    def ok(self) -> bool:
        return not self.stopped and all(finding.is_note for finding in self.findings)

    @property
    def peak_bytes(self) -> int:
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

    def facts(self) -> dict[str, Any]:
        return {
            "device": str(self.device),
            "ok": self.ok,
            "findings": [finding._asdict() for finding in self.findings],
            "peak_bytes": self.peak_bytes,
            "peak": self.peak,
            "stopped": self.stopped,
        }
