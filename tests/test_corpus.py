"""The programs of the corpus: each planted bug is found at its line with its kind, and clean ones raise no alarm."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import torchmove as tm

CORPUS = Path(__file__).parent / "corpus"
PLANTED, CLEAN, DECOYS = (sorted((CORPUS / name).glob("*.py")) for name in ("planted", "clean", "decoys"))
KINDS = {
    *("attribute", "container", "cache", "closure", "factory", "hard-coded", "error", "numpy"),
    *("stale-device", "input", "loss", "optimizer", "thrown-away", "synchronises"),
}
# What torch says of a class that it does not know, or of a GPU that is not there.
pytestmark = pytest.mark.filterwarnings("ignore")


def marks_in(path: Path) -> set[tuple[int, str]]:
    lines = path.read_text().splitlines()
    return {(number, kind) for number, line in enumerate(lines, 1) for kind in re.findall(r"# fails: ([\w-]+)", line)}


def program_of(path: Path):
    name = f"{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    program = sys.modules[name] = importlib.util.module_from_spec(spec)
    with no_accelerator():
        spec.loader.exec_module(program)
    return program


@contextmanager
def no_accelerator():
    """The twin device, which other tests set up, is one to torch."""
    with ExitStack() as patches:
        if not torch.cuda.is_available():
            patches.enter_context(patch.object(torch.accelerator, "is_available", lambda: False))
            patches.enter_context(patch.object(torch.accelerator, "current_accelerator", lambda *_, **__: None))
        yield


def objects_of(program) -> tuple:
    with no_accelerator():
        built = program.build()
    return built if isinstance(built, tuple) else (built,)


def rehearsed(path: Path) -> tm.Rehearsal:
    program = program_of(path)
    return tm.rehearse(program.step, *objects_of(program), **getattr(program, "OPTIONS", {}))


def found_in(path: Path, *, notes: bool = False) -> set[tuple[int, str]]:
    torch.manual_seed(0)
    found = rehearsed(path)
    is_error = any(finding.kind == "error" for finding in found.findings)
    assert (found.stopped == "") is not is_error, str(found)
    assert {finding.file for finding in found.findings} <= {str(path)}
    marked = {"synchronises"} if notes else set()
    return {(each.line, each.kind) for each in found.findings if not each.is_note or each.kind in marked}


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_planted_bug_is_found_where_it_is(path):
    marks = marks_in(path)
    assert marks
    assert found_in(path, notes=any(kind == "synchronises" for _, kind in marks)) == marks


@pytest.mark.parametrize("path", CLEAN + DECOYS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_program_that_is_right_raises_no_alarm(path):
    assert marks_in(path) == set()
    assert found_in(path) == set()


def test_the_corpus_is_large_enough_and_has_every_kind(capsys):
    found, missed = Counter(), Counter()
    for path in PLANTED:
        marks = marks_in(path)
        seen = found_in(path, notes=True)
        found.update(kind for _, kind in marks & seen)
        missed.update(kind for _, kind in marks - seen)
    alarms = sum(bool(found_in(path)) for path in CLEAN + DECOYS)
    with capsys.disabled():
        total = found.total() + missed.total()
        print(f"\ncorpus: {found.total()} of {total} planted bugs found in {len(PLANTED)} programs,", end=" ")
        print(f"{alarms} false alarms in {len(CLEAN)} clean ones and {len(DECOYS)} decoys;", end=" ")
        print(f"by kind: {dict(sorted(found.items()))}")
    assert {*found} == KINDS
    assert (len(PLANTED) >= 150, len(CLEAN) >= 100, len(DECOYS) >= 30, alarms) == (True, True, True, 0)
    assert found.total() >= 0.97 * (found.total() + missed.total())
