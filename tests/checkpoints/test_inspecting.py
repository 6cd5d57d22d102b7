"""What inspect shows beside the tensors: metadata of safetensors files, and only some of the tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from forged import entry, index, safetensors
from torch import nn

from torchmove import cli
from torchmove.checkpoints import inspect
from torchmove.errors import TorchmoveError


def test_the_metadata_of_a_safetensors_file_is_shown(tmp_path):
    texts = {"format": "pt", "title": "x" * 500, "lines\n": "two\nlines", "empty": ""}
    file = safetensors(tmp_path / "a.safetensors", {"__metadata__": texts, "a": entry()}, bytes(8))
    contents = inspect(file)
    assert contents.metadata == {"a.safetensors": texts}
    assert json.loads(contents.to_json())["metadata"] == {"a.safetensors": texts}
    said = str(contents).splitlines()
    assert "  metadata format: pt" in said
    assert f"  metadata title: {'x' * 200}..." in said
    assert "  metadata lines\\n: two\\nlines" in said


def test_the_metadata_that_safetensors_itself_writes_is_shown(tmp_path):
    saving = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    saving.save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", metadata={"format": "pt", "step": "7"})
    assert inspect(tmp_path / "a.safetensors").metadata["a.safetensors"] == {"format": "pt", "step": "7"}


def test_shards_with_the_same_metadata_show_it_once(tmp_path):
    folder = index(tmp_path / "model", {"a": "1.safetensors", "b": "2.safetensors"}, "model.safetensors.index.json")
    for number, name in (("1", "a"), ("2", "b")):
        header = {"__metadata__": {"format": "pt", "part": number}, name: entry()}
        safetensors(folder / f"{number}.safetensors", header, bytes(8))
    contents = inspect(folder)
    assert contents.metadata == {f"{part}.safetensors": {"format": "pt", "part": part} for part in "12"}
    lines = [line.strip() for line in str(contents).splitlines() if "metadata" in line]
    assert lines == ["metadata format: pt", "metadata part: 1 (in 1 file)", "metadata part: 2 (in 1 file)"]


@pytest.mark.parametrize(
    ("metadata", "read"),
    [([], {}), (7, {}), ("text", {}), ({"a": 1, "b": ["x"], "c": "d"}, {"a": "1", "b": '["x"]', "c": "d"})],
)
def test_metadata_of_another_kind_does_not_stop_inspect(tmp_path, metadata, read):
    file = safetensors(tmp_path / "a.safetensors", {"__metadata__": metadata, "a": entry()}, bytes(8))
    assert inspect(file).metadata == {"a.safetensors": read}


def test_much_metadata_is_cut_in_the_text_alone(tmp_path):
    texts = {f"key {number}": "value" for number in range(30)}
    contents = inspect(safetensors(tmp_path / "a.safetensors", {"__metadata__": texts, "a": entry()}, bytes(8)))
    assert "... and 20 more metadata: to_json() has all of them" in str(contents)
    assert json.loads(contents.to_json())["metadata"]["a.safetensors"] == texts


def test_a_key_twice_in_the_metadata_is_refused(tmp_path):
    file = tmp_path / "a.safetensors"
    header = b'{"__metadata__":{"a":"b","a":"c"},"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(TorchmoveError, match=r"R065 .*duplicate key"):
        inspect(file)


@pytest.fixture
def saved(tmp_path) -> Path:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    return tmp_path / "saved.pt"


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("model", ["['model']['0.weight']", "['model']['0.bias']", "['model']['1.weight']"]),
        ("model.0", ["['model']['0.weight']", "['model']['0.bias']"]),
        ("*['model']['0.bias']", ["['model']['0.bias']"]),
        ("optimizer.*.step", ["['optimizer']['state'][0]['step']", "['optimizer']['state'][1]['step']"]),
        ("nothing", []),
    ],
)
def test_a_pattern_selects_tensors_as_keep_does(saved, pattern, paths):
    chosen = inspect(saved).select(pattern)
    facts = json.loads(chosen.to_json())
    assert [each["path"] for each in facts["tensors"]] == paths
    assert facts["filter"] == pattern
    for number, tensor in enumerate(facts["tensors"]):
        assert number in facts["storages"][tensor["storage"]]["tensors"]
    assert {each for storage in facts["storages"] for each in storage["tensors"]} == {*range(len(paths))}
    assert facts["nbytes"] == sum(storage["nbytes"] for storage in facts["storages"])
    assert f"{len(paths)} tensor{'s' * (len(paths) != 1)} of 9 match {pattern!r}" in str(chosen)


def test_a_selected_tensor_names_those_that_it_shares_with(saved):
    assert "['model']['1.weight']" in str(inspect(saved).select("model.0.weight")).splitlines()[-1]


def test_the_command_filters_too(saved):
    ran = CliRunner().invoke(cli.main, ["inspect", str(saved), "--filter", "model.0.bias", "--json"])
    assert ran.exit_code == 0
    assert [each["path"] for each in json.loads(ran.stdout)["tensors"]] == ["['model']['0.bias']"]
    page = CliRunner().invoke(cli.main, ["inspect", str(saved), "--filter", "model.0.bias", "--html", "-"])
    assert page.stdout.startswith("<!doctype html>")
