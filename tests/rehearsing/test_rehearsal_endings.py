"""How a rehearsal ends: an error of the step, a limit of the rehearsal, a device bug. Never mixed, and never a pass."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torchmove as tm
from torchmove.testing import assert_movable

X = torch.ones(3, 4)


def net():
    return nn.Linear(4, 2)


def right(model, x):
    model(x.to("cuda")).sum().backward()


def device_bug(model, x):
    model(x)


def own_error(model, x):
    model(x.to("cuda"))
    raise ValueError("no such label")  # its own


def decides(model, x):
    if model(x.to("cuda")).sum() > 0:  # by a value
        model(x.to("cuda"))


def reads_an_address(model, x):
    model(x.to("cuda"))
    torch.from_file  # noqa: B018
    model(x.to("cuda")).data_ptr()


def not_followed(model, x):
    torch.func.grad(lambda x: model(x).sum())(x.to("cuda"))


def line_of(text: str) -> int:
    with open(__file__) as source:
        return next(number for number, line in enumerate(source, 1) if text in line and "line_of" not in line)


# ---------------------------------------------------------------- true or false


def test_only_a_step_that_ran_to_its_end_without_a_failure_is_true():
    assert tm.rehearse(right, net(), X)
    for step, data in [(device_bug, "auto"), (own_error, "auto"), (decides, "shapes"), (not_followed, "auto")]:
        found = tm.rehearse(step, net(), X, data=data)
        assert not found
        assert found.ok is bool(found) is json.loads(found.to_json())["ok"]
        with pytest.raises(AssertionError):
            assert_movable(step, net(), X, data=data)


@pytest.mark.twin
def test_a_plan_and_a_verdict_are_true_if_they_are_ok():
    model = net()
    assert tm.plan(model, to="cpu")
    assert tm.verify(model, on="cpu")
    model.stray = torch.ones(2, device="meta")
    assert not tm.plan(model, to="twin:0")
    assert not tm.verify(model, on="twin:0")


# ---------------------------------------------------------------- three ends


def test_an_error_of_the_step():
    found = tm.rehearse(own_error, net(), X)
    line = line_of('raise ValueError("no such label")  # its own')
    assert (found.ending, found.stopped_at) == ("error", f"test_rehearsal_endings.py:{line}")
    assert str(found).startswith(f"Incomplete: stopped at test_rehearsal_endings.py:{line} (the step raised an error")
    assert "ValueError: no such label" in str(found)
    assert [(each.line, each.kind) for each in found.failing] == [(line, "error")]


def test_a_limit_of_the_rehearsal():
    found = tm.rehearse(decides, net(), X, data="shapes")
    line = line_of('if model(x.to("cuda")).sum() > 0:  # by a value')
    assert (found.ending, found.failing) == ("limit", ())
    assert str(found).startswith(f"Incomplete: stopped at test_rehearsal_endings.py:{line} (a limit of the rehearsal")
    assert "rehearse with data='real'" in found.stopped
    assert "not a device error" not in str(found)


def test_a_device_bug_runs_to_its_end():
    found = tm.rehearse(device_bug, net(), X)
    assert (found.ending, found.stopped) == ("finished", "")
    assert str(found).startswith("1 device error on cuda:0")


def test_what_was_found_before_the_end_is_said_too():
    def both(model, x):
        model(x)
        raise KeyError("label")

    found = tm.rehearse(both, net(), X)
    assert "; before that, 1 device error on cuda:0" in str(found).splitlines()[0]
    assert [each.kind for each in found.failing] == ["input", "error"]


def test_a_step_that_ends_the_program_is_not_a_pass():
    found = tm.rehearse(lambda model, x: exit(0), net(), X)
    assert (found.ok, found.ending) == (False, "error")


@pytest.mark.parametrize("step", [own_error, not_followed])
def test_the_page_of_an_unfinished_rehearsal_says_what_its_text_says(step):
    page = tm.rehearse(step, net(), X).to_html()
    assert "Incomplete: stopped at test_rehearsal_endings.py:" in page
    assert "until it stopped" in page
    assert "<dd>0</dd>" not in page
    assert "<dd>1</dd>" not in page
    assert "Device errors (" not in page


# ---------------------------------------------------------------- tried without the simulation


def test_an_error_that_the_step_has_by_itself_is_confirmed():
    model = net()
    before = model.weight.clone()

    def step(model, x):
        model.weight.data.mul_(2)
        assert model(x.to("cuda")).device.type == "cuda" or True
        raise ValueError("no such label")

    found = tm.rehearse(step, model, X, confirm_errors=True)
    assert found.ending == "error"
    assert "confirmed: without the simulation, on the CPU, the step also raises ValueError" in found.stopped
    assert torch.equal(model.weight, before)
    assert type(model.weight) is nn.Parameter
    assert torch.is_grad_enabled()


def test_an_error_that_the_simulation_causes_is_a_limit():
    def step(model, x):
        if type(model.weight.data).__name__ != "Tensor":  # what only a stand-in shows
            raise RuntimeError("what is this?")

    found = tm.rehearse(step, net(), X, confirm_errors=True)
    assert found.ending == "limit"
    assert "the rehearsal is the cause, not the step" in found.stopped
    assert found.failing == ()


# ---------------------------------------------------------------- values


def test_a_small_state_is_computed_with_real_values():
    found = tm.rehearse(decides, net(), X)
    assert (found.ok, found.values) == (True, "real")


def large():
    return nn.Sequential(nn.Linear(4, 1 << 21, bias=False), nn.Linear(1 << 21, 4, bias=False))  # 64 MiB each


def test_a_large_one_with_shapes_until_a_value_decides():
    assert tm.rehearse(right, large(), X).values == "shapes"
    found = tm.rehearse(decides, large(), X)
    assert found.ok
    assert found.values.startswith("real: with shapes only it stopped at test_rehearsal_endings.py:")
    assert f"Computed with {found.values.replace(':', ' values:', 1)}" in str(found)


def test_a_state_without_values_says_why_it_was_not_run_with_any():
    with torch.device("meta"):
        model = net()
    found = tm.rehearse(decides, model, X)
    assert (found.ok, found.ending) == (False, "limit")
    assert "not run with real values: the state has meta tensors" in found.stopped


@pytest.mark.parametrize("data", ["shapes", "real"])
def test_the_value_of_a_loss_can_be_averaged_and_divided_by(data):
    seen = []

    def step(model, x):
        loss = model(x.to("cuda")).square().mean()
        seen.append(f"{1 / loss.item():.3f} {sum([loss.item()] * 3) / 3:.2f}")

    found = tm.rehearse(step, net(), X, data=data)
    assert found.ok, str(found)
    assert any("1.0 was used for a value" in each for each in found.assumed) is (data == "shapes")


# ---------------------------------------------------------------- what a plan for the device refuses


@pytest.mark.parametrize("moved_by", ["torchmove", "to"])
def test_float64_parameters_are_refused_for_mps(moved_by):
    found = tm.rehearse(lambda model, x: None, net().double(), X, to="mps", moved_by=moved_by)
    assert (found.ok, found.ending) == (False, "refused")
    assert "R040 at 2 paths (model.weight ... and 1 more): mps does not support torch.float64" in found.stopped


@pytest.mark.parametrize(
    "step",
    [
        lambda model, x: model(x.double().to("mps").float()),
        lambda model, x: torch.zeros(2, dtype=torch.float64, device="mps"),
        lambda model, x: x.to("mps").double(),
    ],
)
def test_float64_on_mps_is_a_device_error_of_the_line(step):
    found = tm.rehearse(step, net(), X, to="mps")
    assert (found.ok, found.ending) == (False, "device")
    assert [(each.kind, each.why) for each in found.failing] == [("dtype", "mps does not support float64")]
    assert tm.rehearse(lambda model, x: model(x.double().float().to("mps")), net(), X, to="mps").ok


@pytest.mark.parametrize(
    ("step", "dtype"),
    [
        (lambda model, x: model(x.to("mps")) + torch.ones(2, dtype=torch.float64), "float64"),
        (lambda model, x: 2 * model(x.to("mps")) * torch.ones(2, dtype=torch.complex128, device="mps"), "complex128"),
    ],
)
def test_an_operator_does_not_hide_what_the_device_refuses(step, dtype):
    found = tm.rehearse(step, net(), X, to="mps")
    assert (found.ok, found.ending) == (False, "device"), str(found)
    assert f"mps does not support {dtype}" in found.stopped
    assert (".to(torch.complex64)" if dtype == "complex128" else ".float()") in found.stopped


# ---------------------------------------------------------------- arguments that torch refuses


@pytest.mark.parametrize(
    "send",
    [
        lambda x: x.to("gpu"),
        lambda x: x.to(device="cuda:0:1"),
        lambda x: x.to("cuda", "float"),
        lambda x: x.cuda("first"),
        lambda x: torch.zeros(3, 4, device="gpu"),
        lambda x: torch.as_tensor(x, device="gpu"),
    ],
)
def test_a_device_that_torch_does_not_know_is_an_error_of_the_step(send):
    with pytest.raises((RuntimeError, TypeError)):
        send(X)
    found = tm.rehearse(lambda model, x: model(send(x)), net(), X)
    assert (found.ok, found.ending, [each.kind for each in found.failing]) == (False, "error", ["error"]), str(found)
