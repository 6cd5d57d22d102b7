"""The Verdict: is it all there?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torchmove._errors import VerificationError
from torchmove._records.drawing import drawn, with_places
from torchmove._records.inventory import Inventory
from torchmove.report import Figure, Page, Point, Points, Reported, Sheet, counted, first_of


class Finding(NamedTuple):
    """Something that is not as it should be: V1xx values, V2xx aliasing, V3xx identity, V4xx placement."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Fix: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Reported):
    """Whether everything is where and what it should be. A verdict is true if there are no findings.

    Attributes:
        tensors: how many were looked at.
        checked: what they were checked for.
        findings: what is not as it should be, each with `code`, `path`, `why` and `remedy`.
    """

    tensors: int
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    seen: Inventory | None = None  # what was looked at, without the tensors
    placement: Sequence[torch.device] = ()  # where each should be, in that order, where that is known

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Do nothing, or say what is wrong.

        Raises:
            VerificationError: there are findings.
        """
        if self.findings:
            raise VerificationError(self)

    def sheet(self) -> Sheet:
        count = f"{counted(self.tensors, 'tensor')} checked for {', '.join(self.checked)}"
        if self.ok:
            return Sheet(f"verified: {count}")
        title = f"not as it should be: {counted(len(self.findings), 'finding')} ({count})"
        return Sheet(title, first_of(self.findings))

    def page(self) -> Page:
        figures = (
            Figure("findings", str(len(self.findings)), tone="good" if self.ok else "bad"),
            Figure("tensors", f"{self.tensors:,}", f"checked for {', '.join(self.checked)}"),
        )
        findings = Points("Findings", tuple(map(_point, self.findings)), "bad")
        state = drawn(self.seen) if self.seen is not None else None
        if state is not None and self.placement:
            state = with_places(state, self.placement, ("is", "should be"))
        title = "All is as it should be" if self.ok else "Not all is as it should be"
        return Page("Verdict", title, figures=figures, points=(findings,), state=state)

    def facts(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "checked": list(self.checked),
            "tensors": self.tensors,
            "findings": [finding._asdict() for finding in self.findings],
        }


def _point(finding: Finding) -> Point:
    return Point(finding.code, finding.path, finding.why, finding.remedy)
