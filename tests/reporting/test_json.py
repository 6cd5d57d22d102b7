"""The JSON of every result and command: one schema, one spelling of bytes and dtypes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchmove as tm
from torchmove import bench, cli, reporting
from torchmove.checkpoints import inspect, relocate
from torchmove.machine import devices
from torchmove.rehearsing.fixing.result import Fixes

PROGRAM = """
import torch
from torch import nn

def step(model, optimizer, batch):
    model(batch.to("cuda")).sum().backward()
    optimizer.step()

def build():
    model = nn.Linear(4, 4)
    return step, model, torch.optim.SGD(model.parameters()), torch.ones(2, 4)
"""
SPELLINGS = {str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("results")
    model, other = nn.Linear(4, 4, dtype=torch.bfloat16), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save({"model": model.state_dict()}, folder / "saved.pt")
    inventory, receipt = tm.survey(model, optimizer), tm.move(model, optimizer, to="cpu")
    trips = {name: bench.Trip(1.0, 2.0) for name in ("usual_first", "usual", "move_first", "move")}
    parked = tm.park(model)
    parked.wake()
    rehearsal = tm.rehearse(_fails, other, torch.ones(1, 2))
    left = tuple((finding, "not certain") for finding in rehearsal.failing)
    return {
        "Inventory": inventory,
        "Selection": inventory.select("*.weight"),
        "Summary": inventory.summary(),
        "Plan": tm.plan(model, optimizer, to="cpu", dtype=torch.float16),
        "Receipt": receipt,
        "Verdict": tm.verify(model, optimizer, on="cpu"),
        "Parked": parked,
        "Swap": tm.swap(out=model, into=other),
        "ByRank": tm.by_rank(receipt),
        "Rehearsal": rehearsal,
        "Fixes": Fixes(rehearsal, rehearsal, (), left, ("train.py",), "", written=False),
        "Contents": inspect(folder / "saved.pt"),
        "SelectedContents": inspect(folder / "saved.pt").select("model"),
        "Relocated": relocate(folder / "saved.pt", out=folder / "again.pt"),
        "Devices": devices(),
        "Bench": bench.Bench(
            device=torch.device("cuda:0"),
            machine="a machine",
            state="a state",
            nbytes=10,
            tensors=1,
            ways=bench.ways_of(trips, 10, bench._BESIDE),
            movers=("plain", "plain"),
            extra=(bench.Extra(None, None), bench.Extra(1, 2)),
        ),
    }


def _fails(model: nn.Module, batch: torch.Tensor) -> None:
    model(batch.to("cuda"))
    raise ValueError("no such label")


def keys_in(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key, each
            yield from keys_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from keys_in(each)


def test_every_kind_of_result_is_here(results):
    assert {*results} == {*reporting._FILES}


@pytest.mark.parametrize("name", reporting._FILES)
def test_the_json_of_a_result_has_one_schema_and_one_spelling(results, name):
    facts = json.loads(results[name].to_json())
    assert next(iter(facts)) == "schema"
    assert facts["schema"] == 1
    for key, value in keys_in(facts):
        assert key != "bytes"
        if key == "nbytes" or (key.endswith("_bytes") and key not in ("extra_bytes", "move_bytes")):
            assert value is None or type(value) is int, key
        if key == "dtype":
            assert value is None or value in SPELLINGS
        if key == "dtypes":
            assert {*value} <= SPELLINGS
        assert not (isinstance(value, str) and value.startswith("torch.") and "dtype" in key)


@pytest.mark.parametrize("name", ["Inventory", "Selection", "Summary", "Plan", "Contents", "Relocated", "Bench"])
def test_a_result_with_a_size_has_it_as_nbytes(results, name):
    assert type(json.loads(results[name].to_json())["nbytes"]) is int


def test_where_a_rehearsal_stopped_is_in_parts(results):
    facts = json.loads(results["Rehearsal"].to_json())
    line = _fails.__code__.co_firstlineno + 2
    stopped = facts["stopped"]
    assert [*stopped] == ["reason", "file", "line", "kind"]
    assert (stopped["file"], stopped["line"], stopped["kind"]) == (__file__, line, "error")
    assert "ValueError: no such label" in stopped["reason"]
    assert not stopped["reason"].startswith("stopped at")
    model = nn.Linear(2, 2)
    assert json.loads(tm.rehearse(lambda model: model.to("cuda"), model).to_json())["stopped"] is None
    refused = json.loads(tm.rehearse(lambda model: None, nn.DataParallel(model)).to_json())["stopped"]
    assert (refused["file"], refused["line"], refused["kind"]) == (None, None, "refused")
    assert "R020" in refused["reason"]


@pytest.mark.parametrize(
    "command",
    [
        "survey program.py:build",
        "survey program.py:build --filter model --sort bytes",
        "summary program.py:build",
        "plan program.py:build --to cpu",
        "rehearse program.py:build",
        "inspect saved.pt",
        "relocate saved.pt -o again.pt",
        "devices",
        "inspect program.py",
        "survey program.py:missing",
        "survey program.py:build --html program.py",
    ],
)
def test_the_json_of_a_command_has_the_schema(command, tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    torch.save({"a": torch.ones(2)}, tmp_path / "saved.pt")
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(cli.main, [*command.split(), "--json"])
    facts = json.loads(ran.stdout)
    assert next(iter(facts)) == "schema"
    assert facts["schema"] == 1
    assert all(key != "bytes" for key, _ in keys_in(facts))


def test_a_selection_has_the_keys_of_its_inventory(results):
    whole, part = (json.loads(results[name].to_json()) for name in ("Inventory", "Selection"))
    assert [*whole] == [*part]
    assert part["filter"] == "*.weight"
    assert [each["path"] for each in part["tensors"]] == ["model.weight"]
    assert [each["tensors"] for each in part["storages"]] == [[0]]
    assert part["nbytes"] == sum(part["devices"].values()) == 32
