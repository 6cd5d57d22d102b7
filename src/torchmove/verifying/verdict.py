"""The Verdict: the result of a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torchmove.errors import VerificationError
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory


class Finding(NamedTuple):
    """One problem found by a verification: V1xx values, V2xx aliasing, V3xx identity, V4xx placement."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Fix: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Result):
    """The result of a verification. It is true if there are no findings.

    Attributes:
        tensors: number of tensors checked.
        checked: the checks that were made.
        findings: the problems found, each with `code`, `path`, `why` and `remedy`.
    """

    tensors: int
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    seen: Inventory | None = None  # the inventory that was checked, without the tensors
    placement: Sequence[torch.device] = ()  # the expected device of each tensor, if known

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Raise if there are findings.

        Raises:
            VerificationError: it lists the findings.
        """
        if self.findings:
            raise VerificationError(self)
