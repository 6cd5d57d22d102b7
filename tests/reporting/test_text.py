"""Results as text: tables fit the terminal, long paths are cut in the middle, and a pipe gets everything."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
import torch
from rich.cells import cell_len
from torch import nn

import torchmove as tm
from torchmove.checkpoints import inspect
from torchmove.reporting import report, text
from torchmove.reporting.page import Sheet, Table, table

WIDTHS = (40, 80, 120, 200)


def deep() -> nn.Module:
    model = nn.Linear(3, 3)
    for name in ("attention_output_projection", "transformer_block", "encoder_of_the_student_network", "backbone") * 2:
        outer = nn.Module()
        outer.add_module(name, model)
        outer.cache = {"ключ": torch.ones(3), "鍵" * 30: torch.ones(2)}
        model = outer
    return model


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, tm.Inventory]:
    model = deep()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.tied = next(model.parameters())
    optimizer = torch.optim.SGD(model.parameters())
    saved = tmp_path_factory.mktemp("checkpoint") / "saved.pt"
    torch.save({"model": model.state_dict(), "twice": model.state_dict()}, saved)
    inventory = tm.survey(model, optimizer)
    return {
        "Inventory": inventory,
        "Selection": inventory.select("*.weight", sort="bytes"),
        "Summary": inventory.summary(9),
        "Plan": tm.plan(model, optimizer, to="cpu"),
        "Receipt": tm.move(model, optimizer, to="cpu"),
        "Contents": inspect(saved),
    }


def tables_of(sheet: Sheet, width: int | None) -> list[list[str]]:
    """The lines of each table: those of the text that follow the title and the lines."""
    lines = text.render(sheet, width=width).splitlines()
    found: list[list[str]] = []
    for index, line in enumerate(lines):
        if line.strip("─ ") == "" and "─" in line:
            rows = iter(lines[index - 1 :])
            found.append([row for row in rows if row.startswith(" ") and not row.startswith(("  ...", "  Too narrow"))])
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["Inventory", "Selection", "Summary", "Plan", "Receipt", "Contents"])
def test_tables_fit_the_terminal(results, name, width):
    sheet = report(results[name]).sheet()
    tables = [each for each in sheet.tables if each.rows]
    drawn = tables_of(sheet, width)
    assert len(drawn) == len(tables)
    for lines, whole in zip(drawn, tables, strict=True):
        assert max(map(cell_len, lines)) <= width
        assert len(lines) == len(whole.rows) + 2


@pytest.mark.parametrize("name", ["Inventory", "Summary", "Contents"])
def test_without_a_terminal_nothing_is_cut(results, name):
    words = str(results[name])
    assert "…" not in words
    assert max(map(len, words.splitlines())) > 200
    for each in report(results[name]).sheet().tables[0].rows:
        assert each[0] in words


def test_a_long_path_keeps_its_beginning_and_its_end(results):
    rows = tables_of(report(results["Inventory"]).sheet(), 80)[0]
    cut = next(path for path in (row.split()[0] for row in rows) if "…" in path and path.endswith(".grad"))
    assert cut.startswith("model.")


@pytest.mark.parametrize("words", ["model.layers[10].weight", "鍵" * 20, "a" * 9, "", "é" * 30])
@pytest.mark.parametrize("width", [1, 2, 5, 9, 24])
def test_what_is_cut_is_not_wider_than_asked(words, width):
    cut = text.elided(words, width)
    assert cell_len(cut) <= width
    assert cut == words if cell_len(words) <= width else "…" in cut


def test_columns_that_do_not_fit_are_named():
    made = table("things", ("path", "bytes", "dtype", "notes"), [("p" * 50, 10**12, "float32", "n" * 50)], total=1)
    words = text.render(Sheet("title", (), (made,)), width=48)
    assert "Too narrow for: notes" in words
    assert f"{10**12}" in words
    assert text.fitted(made, 300) is made
    assert text.fitted(Table("none", ("path", "notes"), (("p" * 40, ""),), 0), 42).columns == ("path",)


class Terminal:
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_the_width_is_that_of_a_terminal_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "91")
    assert text.terminal_width(Terminal()) == 91
    with (tmp_path / "file").open("w") as file:
        assert text.terminal_width(file) is None
    monkeypatch.delenv("COLUMNS")
    assert text.terminal_width(Terminal()) is None
    assert text.terminal_width(None) is None


@pytest.mark.slow
def test_a_command_in_a_terminal_fits_it(tmp_path):
    program = "import torch\n\n\ndef build():\n    return {'" + "long" * 50 + "': torch.ones(3)}\n"
    (tmp_path / "program.py").write_text(program)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "torchmove", "survey", "program.py:build"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    ran = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, cwd=tmp_path, env=environment)
    os.close(theirs)
    printed = b""
    while chunk := _read(ours):
        printed += chunk
    assert ran.wait() == 0
    rows = printed.decode().splitlines()[3:]
    assert max(map(len, rows)) <= 80
    assert "…" in rows[-1]
    assert "float32" in rows[-1]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the command has ended
        return b""


def test_a_dumb_terminal_cuts_nothing_in_a_pipe(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    made = table("things", ("path",), [("p" * 200,)], total=1)
    assert "p" * 200 in text.render(Sheet("title", (), (made,)), color=True)
