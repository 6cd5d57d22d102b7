"""The programs of the corpus: each planted bug is found at its line with its kind, and clean ones raise no alarm."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

import torchmove as tm

CORPUS = Path(__file__).parent / "corpus"
PLANTED, CLEAN = (sorted((CORPUS / name).glob("*.py")) for name in ("planted", "clean"))
KINDS = {
    *("attribute", "container", "cache", "closure", "factory", "hard-coded"),
    *("stale-device", "input", "loss", "optimizer", "thrown-away", "synchronises"),
}


def marks_in(path: Path) -> set[tuple[int, str]]:
    lines = path.read_text().splitlines()
    return {(number, kind) for number, line in enumerate(lines, 1) for kind in re.findall(r"# fails: ([\w-]+)", line)}


def rehearsed(path: Path) -> tm.Rehearsal:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return tm.rehearse(program.step, *program.build(), **getattr(program, "OPTIONS", {}))


def found_in(path: Path) -> set[tuple[int, str]]:
    found = rehearsed(path)
    assert found.stopped == ""
    assert {finding.file for finding in found.findings} <= {str(path)}
    return {(finding.line, finding.kind) for finding in found.findings}


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_planted_bug_is_found_where_it_is(path):
    assert marks_in(path)
    assert found_in(path) == marks_in(path)


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_a_clean_program_raises_no_alarm(path):
    assert found_in(path) == marks_in(path) == set()


def test_the_corpus_is_large_enough_and_has_every_kind(capsys):
    found, missed = Counter(), Counter()
    for path in PLANTED:
        marks, seen = marks_in(path), found_in(path)
        found.update(kind for _, kind in marks & seen)
        missed.update(kind for _, kind in marks - seen)
    alarms = sum(bool(found_in(path)) for path in CLEAN)
    with capsys.disabled():
        total = found.total() + missed.total()
        print(f"\ncorpus: {found.total()} of {total} planted bugs found in {len(PLANTED)} programs,", end=" ")
        print(f"{alarms} false alarms in {len(CLEAN)} clean ones; by kind: {dict(sorted(found.items()))}")
    assert {*found} == KINDS
    assert (len(PLANTED) >= 40, len(CLEAN) >= 40, alarms) == (True, True, 0)
    assert found.total() >= 0.95 * (found.total() + missed.total())
