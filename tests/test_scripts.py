"""The scripts of tests/scripts, rehearsed through the command line: every planted bug is found, corrected ones pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from test_corpus import no_accelerator

from torchmove import cli

SCRIPTS = Path(__file__).parent / "scripts"
PROGRAMS = sorted(path.name for path in SCRIPTS.glob("*.py") if path.name != "gpt_model.py")
NOTES = ("synchronizes", "decided")
MARK, RIGHT = re.compile(r"# fails: ([\w-]+)"), re.compile(r"^(\s*).*# right: (.*)$")
# What torch says of a GPU that is not there, and of many workers on few cores.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _flags_may_be_set(monkeypatch):
    """As in a script: torch's test utilities, once another test has imported them, forbid to set a flag for good."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


def copied(folder: Path, *, right: bool) -> dict[str, str]:
    """All scripts in a folder, as they are or corrected. Returns the text of each."""
    for path in SCRIPTS.glob("*.py"):
        text = path.read_text()
        lines = [RIGHT.sub(r"\1\2", line) if right else line for line in text.splitlines()]
        (folder / path.name).write_text("\n".join(lines) + "\n")
    return contents(folder)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def marks_of(script: str) -> set[tuple[str, int, str]]:
    """The marked lines of a script and of the module that it imports."""
    names = [script, "gpt_model.py"] if "gpt_model" in (SCRIPTS / script).read_text() else [script]
    return {
        (name, number, kind)
        for name in names
        for number, line in enumerate((SCRIPTS / name).read_text().splitlines(), 1)
        for kind in MARK.findall(line)
    }


def rehearsed(script: str, *options: str) -> tuple[int, dict]:
    with no_accelerator():
        ended = CliRunner().invoke(cli.main, ["rehearse", script, "--json", *options])
    return ended.exit_code, json.loads(ended.stdout)


@pytest.mark.parametrize("script", PROGRAMS)
def test_the_planted_bugs_of_a_script_are_found_and_nothing_is_written(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = copied(tmp_path, right=False)
    code, found = rehearsed(script)
    failing = {
        (Path(each["file"]).name, each["line"], each["kind"]) for each in found["findings"] if each["kind"] not in NOTES
    }
    assert (code, found["ending"], failing) == (1, "finished", marks_of(script)), found["stopped"]
    assert contents(tmp_path) == before
    assert found["extent"] == "ran for 2 optimizer steps"
    assert {"parameters", "optimizer"} <= found["peak"].keys()


@pytest.mark.parametrize("script", PROGRAMS)
def test_a_corrected_script_raises_no_alarm(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = copied(tmp_path, right=True)
    code, found = rehearsed(script)
    assert code == 0, found
    assert contents(tmp_path) == before
    assert marks_of(script)


def test_a_script_runs_to_its_end_with_arguments_that_shorten_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied(tmp_path, right=True)
    code, found = rehearsed("mnist_basic.py", "--", "--epochs", "1", "--dry-run")
    assert (code, found["extent"]) == (0, "ran to its end with 1 optimizer step")
