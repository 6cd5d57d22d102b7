"""The Verdict: is it all there?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torchmove._errors import VerificationError
from torchmove.report import Reported, Sheet, counted


class Finding(NamedTuple):
    """Something that is not as it should be: V1xx values, V2xx aliasing, V3xx identity, V4xx placement."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Remedy: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Reported):
    """Is it all there? `findings` says what is not."""

    tensors: int
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings

    def raise_if_bad(self) -> None:
        if self.findings:
            raise VerificationError(self)

    def sheet(self) -> Sheet:
        count = f"{counted(self.tensors, 'tensor')} checked for {', '.join(self.checked)}"
        if self.ok:
            return Sheet(f"verified: {count}")
        shown = self.findings[:40]
        left_out = len(self.findings) - len(shown)
        rest = (f"... and {left_out} more: .findings has all of them",) if left_out else ()
        title = f"not as it should be: {counted(len(self.findings), 'finding')} ({count})"
        return Sheet(title, (*map(str, shown), *rest))

    def facts(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "checked": list(self.checked),
            "tensors": self.tensors,
            "findings": [finding._asdict() for finding in self.findings],
        }
