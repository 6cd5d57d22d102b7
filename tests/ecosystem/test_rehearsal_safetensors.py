"""A step that saves and loads files of safetensors: on the simulated device, nothing written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchmove as tm

safetensors = pytest.importorskip("safetensors")
files = pytest.importorskip("safetensors.torch")


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "weights.safetensors"
    files.save_file({"weight": torch.randn(2, 3), "bias": torch.randn(2)}, found)
    return found


def loaded(model, x, state):
    model.load_state_dict(state)
    return model(x.to("cuda")) @ state["weight"]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0])
def test_what_is_loaded_is_where_it_was_asked_for(path, device):
    def step(model, x):
        loaded(model, x, files.load_file(path, device=device))
        with safetensors.safe_open(path, framework="pt", device=device) as file:
            loaded(model, x, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118

    assert tm.rehearse(step, nn.Linear(3, 2), torch.randn(4, 3))


def test_what_is_loaded_without_a_device_is_on_the_cpu(path):
    def step(model, x):
        state = files.load_file(path)
        return model(x.to("cuda")) @ state["weight"]

    found = tm.rehearse(step, nn.Linear(3, 2), torch.randn(4, 3))
    assert [(each.kind, each.remedy) for each in found.failing] == [("input", 'files.load_file(..., device="cuda")')]


def test_saving_writes_nothing_and_a_file_that_was_not_written_is_a_limit(tmp_path):
    path = tmp_path / "new.safetensors"

    def saves(model, x):
        model(x.to("cuda"))
        files.save_file(model.state_dict(), path)

    def saves_and_loads(model, x):
        saves(model, x)
        files.load_file(path)

    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    assert tm.rehearse(saves, model, x)
    assert tm.rehearse(saves_and_loads, model, x).ending == "limit"
    assert not path.exists()
