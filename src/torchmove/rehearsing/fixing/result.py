"""The result of fixing a program: what was mended, and what is left."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchmove.rehearsing.result import Finding, Rehearsal
from torchmove.results import Result

if TYPE_CHECKING:  # it imports libcst, which is optional
    from torchmove.rehearsing.fixing.rounds import Fixed


@dataclass(frozen=True, eq=False, repr=False)
class Fixes(Result):
    """What the edits of a program mended. True if nothing that would fail is left.

    Attributes:
        before: the rehearsal of the program as it was.
        after: the rehearsal of the edited program.
        mended: the findings that are gone.
        left: the findings that are left, each with the reason why it was not edited.
        files: the edited files.
        diff: the edits as a unified diff.
        written: whether the files were written.
    """

    before: Rehearsal
    after: Rehearsal
    mended: tuple[Finding, ...]
    left: tuple[tuple[Finding, str], ...]
    files: tuple[str, ...]
    diff: str
    written: bool

    @property
    def ok(self) -> bool:
        """Whether nothing that would fail is left in the edited program."""
        return self.after.ok

    def __bool__(self) -> bool:
        return self.ok


def fixes_of(fixed: Fixed, *, written: bool) -> Fixes:
    diff = "".join(_diff(file, fixed.originals[file], source) for file, source in fixed.sources.items())
    return Fixes(fixed.before, fixed.after, fixed.mended, fixed.left, tuple(fixed.sources), diff, written)


def _diff(file: str, original: bytes, source: bytes) -> str:
    name = os.path.relpath(file)
    old, new = (each.decode("utf-8", "backslashreplace").splitlines(keepends=True) for each in (original, source))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in lines)
