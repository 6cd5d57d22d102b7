"""The report of a rehearsal."""

from __future__ import annotations

import os
from typing import Any

from torchmove.formatting import counted, readable_bytes
from torchmove.rehearsing.fixing.result import Fixes
from torchmove.rehearsing.provenance import shown
from torchmove.rehearsing.result import Finding, Rehearsal
from torchmove.reporting import Report
from torchmove.reporting.page import Figure, Page, Point, Points, Sheet, SizeBar


class RehearsalReport(Report[Rehearsal]):
    def headline(self) -> str:
        on_devices = self._listed(self.result.failing)
        count = counted(len(on_devices), "device error")
        if not self.result.stopped:
            if on_devices:
                return f"{count} on {self.result.device}{self._too_large()}"
            ran = f"{self.result.subject} {self.result.extent} on a simulated {self.result.device}"
            return f"No device error found: {ran}" if self.result.fits else f"{ran}{self._too_large()}"
        if self.result.ending == "refused":
            return f"Incomplete: {self.result.subject} was not run"
        nowhere = f"{self.result.subject} did not run to its end"
        where = f"stopped at {self.result.stopped_at}" if self.result.stopped_at else nowhere
        before = f"; before that, {count} on {self.result.device}" if on_devices else ""
        return f"Incomplete: {where} ({self._why_unfinished()}){before}{self._too_large()}"

    def _too_large(self) -> str:
        limit = self.result.max_bytes
        return "" if self.result.fits or limit is None else f"; its peak memory is above {readable_bytes(limit)}"

    def _why_unfinished(self) -> str:
        return _UNFINISHED[self.result.ending].replace("the step", self.result.subject)

    def _listed(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Without what `stopped` says."""
        return tuple(each for each in findings if not (self.result.stopped and each.kind in _ENDINGS))

    def _said(self) -> tuple[str, ...]:
        """What is said beside the findings: why it stopped, with which values it ran, what was assumed."""
        kind, again, why = self.result.values.partition(": ")
        return (
            *((self.result.stopped,) if self.result.stopped else ()),
            *((f"Computed with {kind} values: {why}",) if again else ()),
            *(f"Assumed: {each}" for each in self.result.assumed),
        )

    def sheet(self) -> Sheet:
        lines = [*map(str, self._listed(self.result.findings)), *self._said()]
        parts = ", ".join(f"{part} {readable_bytes(size)}" for part, size in self.result.peak.items())
        size = f"{readable_bytes(self.result.peak_bytes)}" + (f" ({parts})" if parts else "")
        lines += [f"{self._of_peak()}: {size}"] if self.result.ending != "refused" else []
        lines += [] if self.result.fits else [_LESS_MEMORY]
        return Sheet(self.headline(), tuple(lines))

    def _of_peak(self) -> str:
        return f"Peak memory on {self.result.device}{' until it stopped' if self.result.stopped else ''}"

    def page(self) -> Page:
        failing = tuple(map(_point, self._listed(self.result.failing)))
        notes = tuple(_point(each) for each in self.result.findings if each.is_note)
        count = str(len(failing))
        return Page(
            "Rehearsal",
            self.headline(),
            lines=self._said(),
            figures=(
                Figure("device errors", "incomplete", f"{count} so far", "bad")
                if self.result.stopped
                else Figure("device errors", count, "", "bad" if failing else "good"),
                Figure(
                    "peak memory", readable_bytes(self.result.peak_bytes), self._of_peak().removeprefix("Peak memory ")
                ),
            ),
            points=(Points("Device errors", failing, "bad"), Points("Notes", notes)),
            bars=(SizeBar(self._of_peak(), tuple(self.result.peak.items())),),
        )

    def _stopped_facts(self) -> dict[str, Any] | None:
        if not self.result.stopped:
            return None
        file, line = self.result.stopped_in or (None, None)
        lines = [each.strip() for each in self.result.stopped.splitlines()]
        reason = "\n".join(lines[1:] if lines[0].startswith("stopped at ") and lines[1:] else lines)
        return {"reason": reason, "file": file, "line": line, "kind": self.result.ending}

    def facts(self) -> dict[str, Any]:
        return {
            "device": str(self.result.device),
            "subject": self.result.subject,
            "ok": self.result.ok,
            "extent": "" if self.result.stopped else self.result.extent,
            "ending": self.result.ending,
            "findings": [finding._asdict() for finding in self.result.findings],
            "peak_bytes": self.result.peak_bytes,
            "peak": self.result.peak,
            "max_bytes": self.result.max_bytes,
            "fits": self.result.fits,
            "stopped": self._stopped_facts(),
            "values": self.result.values,
            "assumed": list(self.result.assumed),
        }


class FixesReport(Report[Fixes]):
    def headline(self) -> str:
        fixes, count = self.result, counted(len(self.result.mended), "device error")
        if fixes.before.ok:
            return f"Nothing to fix: no device error found on a simulated {fixes.before.device}"
        if not fixes.files:
            return f"Nothing edited: {counted(len(fixes.left), 'error')} left on {fixes.before.device}"
        done = "Fixed" if fixes.written else "Can fix"
        if not fixes.left and not fixes.after.stopped:
            return f"{done} {count}: the edited step ran to its end on a simulated {fixes.after.device}"
        rest = "the edited step is incomplete" if fixes.after.stopped else f"{len(fixes.left)} left"
        return f"{done} {count}; {rest}"

    def sheet(self) -> Sheet:
        fixes = self.result
        mended = [f"{shown(each.file)}:{each.line}  {each.code}\n      fixed: {each.kind}" for each in fixes.mended]
        left = [f"{finding}\n      not edited: {why}" for finding, why in fixes.left]
        stopped = [fixes.after.stopped] if fixes.after.stopped else []
        wrote = [f"Edited: {', '.join(map(os.path.relpath, fixes.files))}"] if fixes.written and fixes.files else []
        return Sheet(self.headline(), (*mended, *left, *stopped, *wrote))

    def facts(self) -> dict[str, Any]:
        fixes = self.result
        return {
            "ok": fixes.ok,
            "fixed": [each._asdict() for each in fixes.mended],
            "left": [{**finding._asdict(), "not_edited": why} for finding, why in fixes.left],
            "files": list(fixes.files),
            "written": fixes.written,
            "diff": fixes.diff,
            "before": RehearsalReport(fixes.before).facts(),
            "after": RehearsalReport(fixes.after).facts(),
        }


_LESS_MEMORY = "    Fix: a smaller batch, torch.utils.checkpoint, a lower precision, or a device with more memory"
_ENDINGS = {"error", "dtype"}  # the kinds of what ends a step: `stopped` says the same


_UNFINISHED = {
    "error": "the step raised an error that is not a device error",
    "device": "a device error",
    "limit": "a limit of the rehearsal, not an error of the step",
}


def _point(finding: Finding) -> Point:
    is_cell = shown(finding.file).startswith("In[")
    place = shown(finding.file) if is_cell else finding.file
    return Point(finding.kind, f"{place}:{finding.line}", finding.why, finding.remedy, quote=finding.code.strip())
