"""Plans for a device that this machine need not have, with an assumed amount of free memory."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchmove as tm
from torchmove import cli
from torchmove.formatting import bytes_of

# A type of device that no machine which runs these tests has.
ABSENT = "xpu" if torch.cuda.is_available() else "cuda"


def state():
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def test_a_plan_for_an_assumed_device_is_that_of_a_machine_with_it():
    model, optimizer = state()
    plan = tm.plan(model, optimizer, to=ABSENT, assume="1MB")
    assert plan.ok
    assert (plan.target, plan.assumed_bytes) == (torch.device(ABSENT, 0), 10**6)
    assert [(room.device, room.has_bytes) for room in plan.rooms] == [(plan.target, 10**6)]
    assert plan.nbytes == 3 * 4 * (64 * 64 + 64)  # Adam's `step` stays on the CPU
    assert {str(stay.path).rpartition("[")[2] for stay in plan.stays} == {"'step']"}


def test_the_headline_the_page_and_the_json_say_that_the_device_is_assumed():
    plan = tm.plan(*state(), to=f"{ABSENT}:3", assume=80 << 30)
    assert f"would move to {ABSENT}:3 (assumed, with 80 GiB free)" in str(plan).splitlines()[0]
    assert f"{ABSENT}:3 (assumed, with 80 GiB free)" in plan.to_html()
    assert json.loads(plan.to_json())["assumed_bytes"] == 80 << 30
    assert json.loads(tm.plan(*state(), to="cpu").to_json())["assumed_bytes"] is None


def test_a_state_that_does_not_fit_is_refused():
    plan = tm.plan(*state(), to=ABSENT, assume="10kB")
    assert [each.code for each in plan.refusals] == ["R042"]
    assert "has 9.77 KiB" in str(plan)


def test_a_plan_for_an_assumed_device_cannot_be_applied():
    model, optimizer = state()
    before = model.weight.data_ptr()
    plan = tm.plan(model, optimizer, to=ABSENT, assume="80GB")
    with pytest.raises(tm.MoveRefused) as raised:
        tm.apply(plan)
    (refusal,) = raised.value.refusals
    assert refusal.code == "R016"
    assert f'tm.apply(tm.plan(..., to="{ABSENT}"))' in refusal.remedy
    assert model.weight.data_ptr() == before


def test_also_one_for_the_cpu_cannot():
    with pytest.raises(tm.MoveRefused, match="R016"):
        tm.apply(tm.plan(*state(), to="cpu", assume="8GB"))


@pytest.mark.parametrize("to", ["auto", "meta", "nowhere", 3.5])
def test_a_device_has_to_be_named(to):
    with pytest.raises(tm.MoveRefused, match=r"R010 .* Fix: name a device, as in to='cuda'"):
        tm.plan(nn.Linear(2, 2), to=to, assume="80GB")


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [("80GB", 80 * 10**9), ("80GiB", 80 << 30), ("1.5 kB", 1500), (" 24gib", 24 << 30), ("123", 123), (123, 123)],
)
def test_sizes(size, nbytes):
    assert bytes_of(size, "assume=") == nbytes


@pytest.mark.parametrize("size", ["", "GB", "80 GB free", "-1GB", "0", 0, -5, True, 1.5, "1e9"])
def test_what_is_no_size_is_refused_with_a_fix(size):
    with pytest.raises(ValueError, match=r"assume=.* is not a size. Fix: assume='80GB', '80GiB' or a number of bytes"):
        tm.plan(nn.Linear(2, 2), to="cuda", assume=size)


def test_at_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 4)\n")
    run = CliRunner().invoke
    planned = run(cli.main, ["plan", "build.py:build", "--to", ABSENT, "--assume", "80GB", "--json"])
    assert (planned.exit_code, json.loads(planned.stdout)["assumed_bytes"]) == (0, 80 * 10**9)
    assert run(cli.main, ["plan", "build.py:build", "--to", ABSENT, "--assume", "10B"]).exit_code == 5
    refused = run(cli.main, ["plan", "build.py:build", "--to", ABSENT, "--assume", "much"])
    assert (refused.exit_code, "Fix: 500MB, 2GB, 2GiB or a number of bytes" in refused.stderr) == (2, True)
