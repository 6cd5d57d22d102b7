"""The Verdict: is it all there?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torchmove.errors import VerificationError
from torchmove.results import Result
from torchmove.surveying.inventory import Inventory


class Finding(NamedTuple):
    """Something that is not as it should be: V1xx values, V2xx aliasing, V3xx identity, V4xx placement."""

    code: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code} {self.path}: {self.why}. Fix: {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Result):
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
