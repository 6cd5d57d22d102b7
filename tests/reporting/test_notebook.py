"""Results in a notebook with a real kernel: str() returns the text, print() prints it once, a cell shows a page."""

from __future__ import annotations

import ast
import json
import re

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs ipykernel and nbclient, which the tests' packages have")
nbclient = pytest.importorskip("nbclient", reason="needs ipykernel and nbclient, which the tests' packages have")

pytestmark = pytest.mark.slow

SETUP = """
import os
import sys
import torch
import torchmove as tm
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.ones(3, 4)


def step(model, batch):
    return model(batch)


results = {
    "Inventory": tm.survey(model, optimizer),
    "Summary": tm.survey(model, optimizer).summary(),
    "Selection": tm.survey(model, optimizer).select("*.weight"),
    "Plan": tm.plan(model, optimizer, to="cpu"),
    "Receipt": tm.move(model, optimizer, to="cpu"),
    "Verdict": tm.verify(model, optimizer, on="cpu"),
    "Rehearsal": tm.rehearse(step, model, batch, to="cuda"),
    "Large": tm.survey(nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))),
}
"""
NAMES = ["Inventory", "Summary", "Selection", "Plan", "Receipt", "Verdict", "Rehearsal", "Large"]
KINDS = {"Large": "Inventory"}
DECIDED = """
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
USES_DECIDED = """
import linecache


def decided(model, batch):
    return model(batch.to(DEVICE))


found = tm.rehearse(decided, model, batch, to="cuda")
(found.ok, [(each.kind, linecache.getline(each.file, each.line).split(" ")[0]) for each in found.findings])
"""
REPORTED = """
def reported(model, batch):
    return model(batch)


print(tm.rehearse(reported, model, batch, to="cuda"))
"""


@pytest.fixture(scope="module")
def notebook():
    """The outputs of every cell, by its name."""
    cells = {"setup": SETUP}
    for name in NAMES:
        cells |= {
            f"str {name}": f"words = str(results['{name}'])\nassert words, 'str() is empty'\nlen(words)",
            f"print {name}": f"print(results['{name}'])",
            f"format {name}": f"words == f'{{results[\"{name}\"]}}' or len(f'{{results[\"{name}\"]}}') > 0",
            f"repr {name}": f"repr(results['{name}'])",
            f"show {name}": f"results['{name}']",
        }
    cells |= {
        "assert": "assert results['Rehearsal'].ok, str(results['Rehearsal'])",
        "decided": DECIDED,
        "uses decided": USES_DECIDED,
        "reported": REPORTED,
    }
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells.values()])
    nbclient.NotebookClient(
        made, timeout=240, kernel_name="python3", allow_errors=True, coalesce_streams=True
    ).execute()
    return {name: cell.outputs for name, cell in zip(cells, made.cells, strict=True)}


def result_of(outputs) -> dict:
    """What a cell shows, of a cell that shows one thing."""
    (output,) = outputs
    assert output.output_type == "execute_result", output
    return output.data


def test_the_results_are_made_without_a_word(notebook):
    assert [each for each in notebook["setup"] if each.output_type != "stream" or each.name != "stderr"] == []


@pytest.mark.parametrize("name", NAMES)
def test_str_returns_the_text_and_shows_nothing(notebook, name):
    assert int(result_of(notebook[f"str {name}"])["text/plain"]) > 20
    assert result_of(notebook[f"format {name}"])["text/plain"] == "True"


@pytest.mark.parametrize("name", NAMES)
def test_print_prints_the_text_once(notebook, name):
    (output,) = notebook[f"print {name}"]
    assert (output.output_type, output.name) == ("stream", "stdout")
    first = output.text.splitlines()[0]
    assert first
    assert output.text.count(first) == 1


@pytest.mark.parametrize("name", NAMES)
def test_repr_is_one_line(notebook, name):
    words = result_of(notebook[f"repr {name}"])["text/plain"]
    assert ast.literal_eval(words).startswith(f"<{KINDS.get(name, name)}: ")
    assert len(words.splitlines()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_cells_result_is_shown_in_a_few_lines_or_as_a_page_and_as_text(notebook, name):
    data = result_of(notebook[f"show {name}"])
    assert data["text/plain"].startswith(f"<{KINDS.get(name, name)}: ")
    assert data["text/html"].startswith("<iframe") is (name == "Large")
    assert data["text/html"].count("\n") < 30 or name == "Large"


def test_a_failed_assertion_shows_the_rehearsal(notebook):
    (error,) = notebook["assert"]
    assert (error.output_type, error.ename) == ("error", "AssertionError")
    assert error.evalue.startswith("1 device error on cuda:0")
    assert "Fix: batch = batch.to" in error.evalue


def test_a_device_decided_in_another_cell_is_the_simulated_one(notebook):
    assert (
        json.loads(json.dumps(result_of(notebook["uses decided"])["text/plain"])) == "(True, [('decided', 'DEVICE')])"
    )


def test_a_cell_is_named_by_its_number(notebook):
    (output,) = notebook["reported"]
    assert re.search(r"^  In\[\d+\]:2  return model\(batch\)", output.text, re.MULTILINE), output.text
