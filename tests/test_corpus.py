"""The programs of the corpus: each planted bug is found at its line with its kind, and clean ones raise no alarm."""

from __future__ import annotations

import re
import sys
import traceback
import types
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import torchmove as tm
from torchmove.rehearsing.captured import Given, trained_in
from torchmove.surveying.paths import names_of

CORPUS = Path(__file__).parent / "corpus"
PLANTED, CLEAN, DECOYS = (sorted((CORPUS / name).glob("*.py")) for name in ("planted", "clean", "decoys"))
KINDS = {
    *("attribute", "container", "cache", "closure", "factory", "hard-coded", "error", "numpy", "host", "generator"),
    *("stale-device", "input", "loss", "optimizer", "thrown-away", "synchronizes", "dtype"),
}
# What torch says of a class that it does not know, or of a GPU that is not there.
pytestmark = pytest.mark.filterwarnings("ignore")


def marks_in(path: Path) -> set[tuple[int, str]]:
    lines = path.read_text().splitlines()
    return {(number, kind) for number, line in enumerate(lines, 1) for kind in re.findall(r"# fails: ([\w-]+)", line)}


def program_of(path: Path, device: str = "cuda"):
    """The module of a program, with this device in the place of "cuda"."""
    program = sys.modules[path.stem] = types.ModuleType(path.stem)
    program.__file__ = str(path)
    code = path.read_text() if device == "cuda" else re.sub(r"(?<=[\"'])cuda(:\d)?", device, path.read_text())
    with no_accelerator():
        exec(compile(code, path, "exec", dont_inherit=True), vars(program))
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
    marked = {"synchronizes"} if notes else set()
    return {(each.line, each.kind) for each in found.findings if not each.is_note or each.kind in marked}


def is_plain_on_the_cpu(path: Path) -> bool:
    """A tensor of a wrong dtype is one on the CPU too."""
    return not any(kind == "error" for _, kind in marks_in(path))


@pytest.mark.twin
@pytest.mark.parametrize(
    "path", [*CLEAN, *DECOYS, *filter(is_plain_on_the_cpu, PLANTED)], ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_program_runs_on_the_cpu(path):
    program = program_of(path, "cpu")
    torch.manual_seed(0)
    with (
        patch.object(nn.Module, "cuda", lambda module, *_, **__: module),
        patch.object(Tensor, "cuda", lambda each, *_, **__: each),
    ):
        program.step(*objects_of(program))


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_planted_bug_is_found_where_it_is(path):
    marks = marks_in(path)
    assert marks
    assert found_in(path, notes=any(kind == "synchronizes" for _, kind in marks)) == marks


@pytest.mark.parametrize("path", CLEAN + DECOYS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_program_that_is_right_raises_no_alarm(path):
    assert marks_in(path) == set()
    assert found_in(path) == set()


@pytest.mark.slow
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


# ---------------------------------------------------------------- on a GPU, for real


def moved(program) -> tuple:
    """The objects, with the states among them on the GPU: by tm.move or by Module.to, as the rehearsal had it."""
    torch.manual_seed(0)
    objects, options = objects_of(program), getattr(program, "OPTIONS", {})
    states = [*Given(names_of(objects, None), tuple(options.get("state", ()))).states.values()]
    if options.get("moved_by") == "to":
        for each in trained_in(states):
            if isinstance(each, nn.Module):
                each.to("cuda")
    else:
        states = [each for each in states if not has_moved(each, program)]
        if states:
            tm.move(*states, to="cuda")
    return objects


def has_moved(state, program) -> bool:
    """A function, or an object of the program's own class that has sent its modules by itself."""
    if isinstance(state, types.FunctionType):
        return True
    modules = (each for each in trained_in([state]) if isinstance(each, nn.Module))
    is_own = type(state).__module__ == program.__name__ and not isinstance(state, nn.Module)
    return is_own and any(one.is_cuda for each in modules for one in each.parameters())


def line_of_the_first_error(path: Path) -> int | None:
    program = program_of(path)
    try:
        program.step(*moved(program))
        torch.cuda.synchronize()
    except Exception as error:
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
        return lines[-1]
    return None


def line_of_the_first_finding(path: Path) -> int | None:
    torch.manual_seed(0)
    return next((each.line for each in rehearsed(path).failing), None)


def has_its_devices(path: Path) -> bool:
    """Where there is one GPU, a program that names a second one fails there, and not where devices are mixed."""
    return torch.cuda.device_count() > 1 or "cuda:1" not in path.read_text()


@pytest.mark.cuda
@pytest.mark.parametrize("path", [*PLANTED, *CLEAN, *DECOYS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_first_finding_is_the_first_error_of_the_gpu(path):
    if not has_its_devices(path):
        pytest.skip("it needs two GPUs")
    assert line_of_the_first_finding(path) == line_of_the_first_error(path)


@pytest.mark.cuda
def test_the_rehearsals_agree_with_the_gpu(capsys):
    rows, apart = Counter(), []
    for path in filter(has_its_devices, (*PLANTED, *CLEAN, *DECOYS)):
        foretold, seen = line_of_the_first_finding(path), line_of_the_first_error(path)
        rows[path.parent.name, foretold == seen] += 1
        if foretold != seen:
            apart.append(f"{path.parent.name}/{path.name}: foretold line {foretold}, seen {seen}")
    with capsys.disabled():
        total = rows.total()
        print(
            f"\nagreement: {total - len(apart)} of {total}; by kind of program and agreement: {dict(rows)}",
            *apart,
            sep="\n",
        )
    assert len(apart) <= 0.01 * total
