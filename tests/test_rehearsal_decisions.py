"""Devices that were decided where there is no GPU are the simulated one's; those named on purpose stay."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from test_corpus import no_accelerator
from torch import nn

import torchmove as tm

HEAD = """import argparse
import torch
from dataclasses import dataclass
from types import SimpleNamespace
from torch import nn
"""
DECIDED = {
    "an expression": 'DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
    "a string": 'DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"',
    "an if": """
if torch.cuda.is_available():
    DEVICE = torch.device("cuda")
else:
    DEVICE = torch.device("cpu")""",
    "a default before an if": 'DEVICE = "cpu"\nif torch.cuda.is_available():\n    DEVICE = "cuda"',
    "torch.accelerator": """
accelerator = torch.accelerator.current_accelerator()
DEVICE = accelerator if torch.accelerator.is_available() else torch.device("cpu")""",
    "by a switch": 'use = not False and torch.cuda.is_available()\nDEVICE = torch.device("cuda" if use else "cpu")',
    "by a function": """
def best():
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


DEVICE = best()""",
    "by a chain of names": """
gpu = torch.cuda.is_available()
name = "cuda" if gpu else "cpu"
DEVICE = torch.device(name)""",
    "by a try": """
try:
    torch.cuda.current_device()
    DEVICE = "cuda"
except Exception:
    DEVICE = "cpu\"""",
    "in a namespace": """
args = SimpleNamespace(device="cuda" if torch.cuda.is_available() else "cpu")
DEVICE = args.device""",
}
ON_PURPOSE = {
    "a device": 'DEVICE = torch.device("cpu")',
    "a string": 'DEVICE = "cpu"',
    "beside one that is decided": """
OTHER = "cuda" if torch.cuda.is_available() else "cpu"
DEVICE = torch.device("cpu")""",
    "of a tensor": "DEVICE = torch.zeros(1).device",
}
STEP = """

def step(model, x):
    return model(x.to(DEVICE)) + torch.zeros(2, device=DEVICE)
"""


@pytest.fixture
def loaded(tmp_path):
    names = []

    def load(text):
        name = f"decided_{len(names)}_{tmp_path.name}".replace("-", "_")
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + text)
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        names.append(name)
        with no_accelerator():
            spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        del sys.modules[name]


def rehearsed(module, **options):
    return tm.rehearse(module.step, nn.Linear(4, 2), torch.ones(3, 4), **options)


@pytest.mark.parametrize("how", DECIDED)
def test_a_device_decided_at_import_is_the_simulated_one(loaded, how):
    module = loaded(DECIDED[how] + STEP)
    found = rehearsed(module)
    assert found.ok, str(found)
    (note,) = [each for each in found.findings if each.kind == "decided"]
    assert "DEVICE" in note.why
    line = (HEAD + DECIDED[how]).splitlines()[note.line - 1]
    assert "cuda" in line or "accelerator" in line
    assert str(module.DEVICE) == "cpu"  # put back


@pytest.mark.parametrize("how", DECIDED)
def test_strict_devices_reports_it(loaded, how):
    found = rehearsed(loaded(DECIDED[how] + STEP), strict_devices=True)
    assert not found.ok
    assert {each.kind for each in found.failing} <= {"stale-device", "input"}
    assert not [each for each in found.findings if each.kind == "decided"]


@pytest.mark.parametrize("how", ON_PURPOSE)
def test_a_cpu_on_purpose_stays_the_cpu(loaded, how):
    found = rehearsed(loaded(ON_PURPOSE[how] + STEP))
    assert not found.ok
    assert {each.kind for each in found.failing} <= {"stale-device", "input"}


WHERE = {
    "a default argument": """
def step(model, x, device=PLACE):
    model(x.to(device))""",
    "a keyword with a default": """
def step(model, x, *, device=PLACE):
    model(x.to(device))""",
    "an attribute of a module": """
class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.place = PLACE


net = Net()


def step(model, x):
    model(x.to(net.place))""",
    "an attribute of a class": """
class Config:
    place = PLACE


def step(model, x):
    model(x.to(Config.place))""",
    "an attribute of an object": """
class Trainer:
    def __init__(self):
        self.place = PLACE


trainer = Trainer()


def step(model, x):
    model(x.to(trainer.place))""",
    "a switch of an object": """
class Trainer:
    def __init__(self):
        self.gpu = ASKED


trainer = Trainer()


def step(model, x):
    model(x.cuda() if trainer.gpu else x)""",
    "a dict": """
config = {"device": PLACE}


def step(model, x):
    model(x.to(config["device"]))""",
    "a dataclass": """
@dataclass(frozen=True)
class Config:
    place: str


config = Config(place=PLACE)


def step(model, x):
    model(x.to(config.place))""",
    "an argument of the command": """
parser = argparse.ArgumentParser()
parser.add_argument("--device", default=PLACE)
args = parser.parse_args([])


def step(model, x):
    model(x.to(args.device))""",
    "a closure": """
def make():
    place = PLACE

    def step(model, x):
        model(x.to(place))

    return step


step = make()""",
    "a loss on it": """
weight = torch.ones(2, device=PLACE)


def step(model, x):
    model(x.to("cuda")) * weight""",
    "a model on it": """
net = nn.Linear(2, 2).to(PLACE)


def step(model, x):
    net(model(x.to("cuda")))""",
}


def with_place(where: str, *, decided: bool) -> str:
    place = '"cuda" if torch.cuda.is_available() else "cpu"' if decided else '"cpu"'
    return WHERE[where].replace("PLACE", place).replace("ASKED", "torch.cuda.is_available()" if decided else "False")


@pytest.mark.parametrize("where", WHERE)
def test_wherever_it_is_kept(loaded, where):
    found = rehearsed(loaded(with_place(where, decided=True)))
    assert found.ok, str(found)
    assert not rehearsed(loaded(with_place(where, decided=False))).ok


def test_a_decision_inside_the_step_needs_no_note():
    def step(model, x):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model(x.to(device))

    found = tm.rehearse(step, nn.Linear(4, 2), torch.ones(3, 4))
    assert (found.ok, found.findings) == (True, ())
