"""A limit on the peak memory of a rehearsal."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchmove as tm
from torchmove import cli
from torchmove.testing import assert_movable


def step(model, x):
    model(x.to("cuda")).sum().backward()


def wrong_step(model, x):
    model(x).sum().backward()


def stopping_step(model, x):
    step(model, x)
    raise ValueError("no such label")


def arguments():
    return nn.Linear(64, 64), torch.ones(8, 64)


def test_a_step_fits_exactly_or_not_at_all():
    peak = tm.rehearse(step, *arguments()).peak_bytes
    fits, above = (tm.rehearse(step, *arguments(), max_memory=limit) for limit in (peak, peak - 1))
    assert (fits.ok, fits.fits, fits.max_bytes) == (True, True, peak)
    assert (above.ok, above.fits, above.failing, above.ending) == (False, False, (), "finished")
    assert bool(above) is False


@pytest.mark.parametrize(
    ("rehearsed", "headline"),
    [
        (step, "the step ran to its end on a simulated cuda:0; its peak memory is above 1.95 KiB"),
        (wrong_step, "1 device error on cuda:0; its peak memory is above 1.95 KiB"),
        (stopping_step, "its peak memory is above 1.95 KiB"),
    ],
)
def test_the_headline_and_the_json_say_so(rehearsed, headline):
    found = tm.rehearse(rehearsed, *arguments(), max_memory="2kB")
    assert str(found).splitlines()[0].endswith(headline)
    assert "Fix: a smaller batch" in str(found)
    assert headline in found.to_html()
    facts = json.loads(found.to_json())
    assert (facts["ok"], facts["fits"], facts["max_bytes"]) == (False, False, 2000)


def test_without_a_limit_everything_fits():
    found = tm.rehearse(step, *arguments())
    assert (found.fits, json.loads(found.to_json())["max_bytes"], "above" in str(found)) == (True, None, False)


def test_an_assertion_fails_above_the_limit():
    assert_movable(step, *arguments(), max_memory="80GB")
    with pytest.raises(AssertionError, match="its peak memory is above"):
        assert_movable(step, *arguments(), max_memory="2kB")


def test_a_limit_has_to_be_a_size():
    with pytest.raises(ValueError, match="is not a size"):
        tm.rehearse(step, *arguments(), max_memory="much")


PROGRAM = """
import torch
from torch import nn

def build():
    return step, nn.Linear(64, 64), torch.ones(8, 64)

def step(model, x):
    model(x.to("cuda")).sum().backward()

if __name__ == "__main__":
    model = nn.Linear(64, 64).to("cuda")
    step(model, torch.ones(8, 64))
"""


@pytest.mark.parametrize("target", ["train.py", "train.py:build"])
def test_the_command_exits_with_1_above_the_limit(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    codes = [
        CliRunner().invoke(cli.main, ["rehearse", target, "--max-memory", limit]).exit_code
        for limit in ("80GB", "2kB", "much")
    ]
    assert codes == [0, 1, 2]
