"""Edit, rehearse the edited program, keep what mended something; until nothing is left that an edit mends.

No file is written here: the edited sources are given to the function that rehearses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torchmove.rehearsing.evidence import Evidence
from torchmove.rehearsing.fixing.candidates import Candidate, candidates, why_none
from torchmove.rehearsing.fixing.edits import Edit, NotEdited, file_of
from torchmove.rehearsing.fixing.rewriting import edited
from torchmove.rehearsing.result import Finding, Rehearsal

Rehearse = Callable[[Mapping[str, bytes]], Rehearsal]  # with these sources in the place of the files
Read = Callable[[str], bytes]  # the source of a file; raises NotEdited for one that is not to be edited
Key = tuple[str, int | None, str, str]  # of a finding: its file, its line before all edits, its kind, and its code
_MOST_ROUNDS = 12
_NO_HELP = "no edit that is certain mends it"


class RehearsalFailed(Exception):
    """The edited program could not be rehearsed: it raises an error when it is loaded."""


class Fixed(NamedTuple):
    """What the edits have come to.

    Attributes:
        before, after: the rehearsals of the program as it was and as it is edited.
        sources: the edited files.
        originals: the same files before.
        mended: the findings that are gone.
        left: the findings that are left, each with the reason.
    """

    before: Rehearsal
    after: Rehearsal
    sources: dict[str, bytes]
    originals: dict[str, bytes]
    mended: tuple[Finding, ...]
    left: tuple[tuple[Finding, str], ...]


def fix(rehearse: Rehearse, read: Read) -> Fixed:
    """Rehearse a program, edit it, and rehearse it again."""
    return _Rounds(rehearse, read).run()


class _Version(NamedTuple):
    """The program with some edits, and its rehearsal."""

    sources: dict[str, bytes]
    found: Rehearsal

    @property
    def cost(self) -> tuple[bool, int]:
        return self.found.ending != "finished", len(self.found.failing)


class _Rounds:
    def __init__(self, rehearse: Rehearse, read: Read) -> None:
        self.rehearse, self.read = rehearse, read
        self.originals: dict[str, bytes] = {}
        self.tried: dict[Key, int] = {}  # how many candidates of a finding were tried
        self.reasons: dict[tuple[str, int | None, str], str] = {}  # why the first candidate could not be applied

    def run(self) -> Fixed:
        first = now = best = _Version({}, self.rehearse({}))
        for _ in range(_MOST_ROUNDS):
            if now.found.ok or not now.found.failing:
                break
            advanced = self.advanced(now)
            if advanced is None:
                break
            now = advanced
            if self.is_better(now, first) and now.cost <= best.cost:
                best = now
        left = {self.place(best, each) for each in best.found.failing}
        mended = tuple(each for each in first.found.failing if self.place(first, each) not in left)
        originals = {file: self.originals[file] for file in best.sources}
        return Fixed(first.found, best.found, best.sources, originals, mended, self.explained(best))

    def advanced(self, now: _Version) -> _Version | None:
        """The next version: with an edit for each finding, or else with the first edit that helps alone."""
        found = [*self.next_edits(now)]
        steps = [each for each in found if each[1].early] or found
        if len(steps) > 1:
            together = self.with_edits(now, [edit for _, candidate in steps for edit in candidate.edits])
            if together is not None and all(self.helps(together, now, key) for key, _ in steps):
                return together
        for key, (edits, _) in steps:
            self.tried[key] = self.tried.get(key, 0) + 1
            alone = self.with_edits(now, edits)
            if alone is not None and self.helps(alone, now, key):
                return alone
        return self.advanced(now) if steps else None

    def next_edits(self, now: _Version) -> Iterator[tuple[Key, Candidate]]:
        """For each finding the next candidate that can be applied."""
        for finding, evidences in _failing(now.found):
            for number, evidence in enumerate(evidences):
                key = (*self.place(now, finding), f"{finding.code} {number}")
                options = candidates(finding, evidence)
                while self.tried.get(key, 0) < len(options):
                    candidate = options[self.tried.get(key, 0)]
                    try:
                        self.edit(now.sources, candidate.edits)
                    except NotEdited as error:
                        self.reasons.setdefault(key[:3], str(error))
                        self.tried[key] = self.tried.get(key, 0) + 1
                        continue
                    yield key, candidate
                    break

    def with_edits(self, now: _Version, edits: Sequence[Edit]) -> _Version | None:
        try:
            sources = self.edit(now.sources, edits)
        except NotEdited:
            return None
        try:
            return _Version(sources, self.rehearse(sources)) if sources != now.sources else None
        except RehearsalFailed:
            return None

    def edit(self, sources: Mapping[str, bytes], edits: Sequence[Edit]) -> dict[str, bytes]:
        changed = dict(sources)
        for file in {file_of(each): None for each in edits}:
            source = sources.get(file) or self.original(file)
            changed[file] = edited(source, [*dict.fromkeys(each for each in edits if file_of(each) == file)])
        return changed

    def original(self, file: str) -> bytes:
        if file not in self.originals:
            self.originals[file] = self.read(file)
        return self.originals[file]

    # ------------------------------------------------------------ comparing rehearsals

    def helps(self, then: _Version, now: _Version, key: Key) -> bool:
        """Whether an edit mended its finding; another one that was hidden behind it may appear."""
        if then.found.ending != "finished" and now.found.ending == "finished":
            return False
        left = {self.place(then, each) for each in then.found.failing}
        before = {self.place(now, each) for each in now.found.failing}
        new = left - before
        return key[:3] not in left and not any(each[:2] == key[:2] for each in new) and len(new) <= len(before)

    def is_better(self, then: _Version, first: _Version) -> bool:
        """Whether a version may be written: nothing is new, and something is mended."""
        if then.found.ok:
            return True
        if then.found.ending != "finished" and first.found.ending == "finished":
            return False
        left = {self.place(then, each) for each in then.found.failing}
        return then.cost < first.cost and left <= {self.place(first, each) for each in first.found.failing}

    def place(self, version: _Version, finding: Finding) -> tuple[str, int | None, str]:
        """The finding's file, its line in the unedited file, and its kind."""
        if finding.file not in version.sources:
            return finding.file, finding.line, finding.kind
        lines = _lines_before(self.originals[finding.file], version.sources[finding.file])
        return finding.file, lines.get(finding.line), finding.kind

    def explained(self, version: _Version) -> tuple[tuple[Finding, str], ...]:
        """Each finding of the last rehearsal with the reason why it is left."""
        return tuple(
            (finding, self.why_left(version, finding, evidences)) for finding, evidences in _failing(version.found)
        )

    def why_left(self, version: _Version, finding: Finding, evidences: tuple[Evidence, ...]) -> str:
        for each in evidences:
            if not candidates(finding, each):
                return why_none(finding, each)
        return self.reasons.get(self.place(version, finding), _NO_HELP)


def _failing(found: Rehearsal) -> list[tuple[Finding, tuple[Evidence, ...]]]:
    return [(each, evidence) for each, evidence in zip(found.findings, found.evidence, strict=True) if not each.is_note]


def _lines_before(original: bytes, source: bytes) -> dict[int, int]:
    """The line in the unedited file of each line; not of an inserted one."""
    old, new = original.splitlines(), source.splitlines()
    found: dict[int, int] = {}
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and i2 - i1 == j2 - j1):
            found.update({j1 + index + 1: i1 + index + 1 for index in range(j2 - j1)})
        elif tag == "replace":
            close = _closest(old[i1:i2], new[j1:j2])
            found.update({j1 + new_index + 1: i1 + old_index + 1 for old_index, new_index in close.items()})
    return found


def _closest(old: list[bytes], new: list[bytes]) -> dict[int, int]:
    """For each old line the most similar of the new ones."""
    found: dict[int, int] = {}
    for index, line in enumerate(old):
        free = [each for each in range(len(new)) if each not in found.values()]
        ratios = {each: difflib.SequenceMatcher(None, line, new[each]).ratio() for each in free}
        if ratios:
            found[index] = max(ratios, key=ratios.__getitem__)
    return found
