"""The pages are true: what they show runs and prints what they say, what they name is there, and the site is built."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Player, commands_of, pieces_of
from torch import distributed

import torchmove as tm

# Commands that pages show and that are not run here, and why.
NOT_RUN = {
    "make test": "these are the tests",
    "make test-all": "as above",
    "make check": "it takes the linters, and runs the shape test again",
    "make demo": "test_examples.py runs what it runs",
    "make docs": "test_site.py builds the site",
    "make test-browser": "it needs Chromium; test_page.py runs where that is there",
    "make test-ecosystem": "it makes an environment of its own, of gigabytes",
    "make zoo": "as above, and it takes minutes",
    ".venv-ecosystem/bin/python -m pytest tests/ecosystem/test_optimizers.py": "as above",
    ".venv-ecosystem/bin/python benchmarks/zoo.py --device cuda --jobs 15": "as above",
    '.venv-ecosystem/bin/python benchmarks/zoo.py --only "transformers gpt*" --json': "as above",
    "make dist": "test_install.py checks such files; it takes build and twine",
    "make test-torch VERSION=2.15.0 PYTHON=python3.13": "it makes an environment of its own, of gigabytes",
    "make bench": "it needs a GPU, and minutes",
    "torchmove bench": "it measures for a minute; test_bench.py runs it on a small state",
    "torchmove demo": "tests/cli/test_commands.py runs it",
    "torchmove devices": "as above: each machine has its own",
    "pip install .": "test_install.py does, into a folder of its own",
    "pip wheel --no-deps --wheel-dir wheels .": "as above",
    "pip install torch --index-url https://download.pytorch.org/whl/cpu": "it needs a network",
    "pip install numpy pytest wheels/torchmove-*.whl": "as above; test_install.py installs the wheel",
}

# Pages that are played by another test, since they need libraries.
ELSEWHERE = {"docs/trainers.md": "tests/ecosystem/test_trainers_page.py"}

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PLAYED = [
    pytest.param(name, marks=[] if name == "README.md" else [pytest.mark.slow])
    for name in NAMES
    if name not in ELSEWHERE
]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    if distributed.is_initialized():
        distributed.destroy_process_group()
    tm.release()


@pytest.mark.twin
@pytest.mark.parametrize("device", ["twin", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
@pytest.mark.parametrize("name", PLAYED)
def test_what_a_page_shows_runs_and_prints_what_it_says(name, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Player(ROOT / name, tmp_path, device, NOT_RUN).play()


@pytest.mark.twin
@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\n1 / 0\n```\n\n```text\nValueError\n```\n",
        "```console\npython -c 'print(1)'\n```\n\n```text\n2\n```\n",
        "```console\npython -c 'exit(2)'\n```\n",
        "<!-- setup\nraise RuntimeError\n-->\n",
    ],
)
def test_a_page_that_is_not_true_is_found_out(page, tmp_path):
    (tmp_path / "page.md").write_text(page)
    with pytest.raises((AssertionError, RuntimeError)):
        Player(tmp_path / "page.md", tmp_path, "twin").play()


def test_every_page_that_is_not_played_here_is_played_by_another_test():
    for page, test in ELSEWHERE.items():
        assert page in NAMES
        assert f'"{Path(page).name}"' in (ROOT / test).read_text()


def test_every_command_that_is_not_run_is_shown_somewhere():
    shown = {
        line.partition(" #")[0].strip()
        for page in PAGES
        for piece in pieces_of(page.read_text())
        if piece.kind == "console"
        for line in commands_of(piece)
    }
    assert {*NOT_RUN} <= shown


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_one_that_is_run(name):
    """A block that is indented, or of a language that nobody knows, would go unread."""
    text = (ROOT / name).read_text()
    pieces = pieces_of(text)
    assert len(pieces) == len(re.findall(r"^\s*```\w|^<!-- setup$", text, re.M))
    assert {piece.kind for piece in pieces} <= {"python", "console", "text", "yaml", "setup"}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def anchors_of(page: Path) -> set[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings} | {
        *re.findall(r'<a id="([^"]+)">', text)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_test_that_a_page_names_is_there(name):
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / name).read_text()):
        tree = ast.parse((ROOT / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


@pytest.mark.parametrize("name", NAMES)
def test_every_program_that_a_page_names_is_there_and_takes_what_it_is_given(name):
    for program, options in re.findall(r"\b((?:benchmarks|examples|docs)/\w+\.py)([^`\n]*)", (ROOT / name).read_text()):
        text = (ROOT / program).read_text()
        for option in re.findall(r"--[\w-]+", options.partition("#")[0]):
            assert f'"{option}"' in text, f"{program} {option}"


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_runs_the_tests_as_its_page_does(name):
    pieces = pieces_of((ROOT / name).read_text())
    shown = {
        line.partition(" #")[0].strip() for piece in pieces if piece.kind == "console" for line in commands_of(piece)
    }
    workflows = (piece.code for piece in pieces if piece.kind == "yaml")
    runs = {line for code in workflows for line in re.findall(r"- run: (.*)", code)}
    assert runs <= shown


def test_the_figures_of_the_readme_are_those_of_the_page():
    row = re.search(r"^\| 14\.5 GB.*$", (ROOT / "README.md").read_text(), re.M)[0]
    usual, ours = (re.findall(r"\d+\.\d+", cell) for cell in row.split("|")[2:4])
    page = (ROOT / "docs" / "performance.md").read_text()
    for figures, name in ((usual, r"Module\.to and a loop over the state, later"), (ours, r"tm\.move, later")):
        cells = re.search(rf"^\| {name} \|(.*)$", page, re.M)[1].split("|")
        assert figures == [cells[0].strip(), cells[4].strip()]


def test_every_target_that_a_page_names_is_in_the_makefile():
    targets = {*re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)}
    named = {target for page in PAGES for target in re.findall(r"(?:`|^)make (\w+)", page.read_text(), re.M)}
    assert named <= targets


def test_the_readmes_libraries_have_the_seconds_of_the_page_about_performance():
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/performance.md"))
    rows = dict(re.findall(r"^\| (.*?) \| (0\.\d+ \| 0\.\d+) \|$", readme, re.M))
    assert len(rows) == 4
    for way, seconds in rows.items():
        there, back = seconds.split(" | ")
        name = way.replace("`optimizer.state`", "the state")
        assert re.search(rf"^\| {re.escape(name)} \| {there} \| [\d.]+ \| [\d. ]*\| {back} \|", page, re.M), way
