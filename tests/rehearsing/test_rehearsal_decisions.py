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
import functools
import torch
from contextlib import nullcontext
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
    "by a match": """
match torch.cuda.is_available():
    case True:
        DEVICE = "cuda"
    case False:
        DEVICE = "cpu\"""",
    "by a function that sets a variable of the module": """
DEVICE = None


def choose():
    global DEVICE
    DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


choose()""",
    "by a switch made of itself": """
args = SimpleNamespace(cuda=True)
args.cuda = args.cuda and torch.cuda.is_available()
DEVICE = torch.device("cuda" if args.cuda else "cpu")""",
    "in a list": """
DEVICES = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] or [torch.device("cpu")]
DEVICE = DEVICES[0]""",
    "in a namespace": """
args = SimpleNamespace(device="cuda" if torch.cuda.is_available() else "cpu")
DEVICE = args.device""",
    "by the number of devices": (
        'count = torch.cuda.device_count()\nDEVICE = torch.device("cuda:0" if count > 0 else "cpu")'
    ),
    "by the number of devices in a namespace": (
        "args = argparse.Namespace(no_cuda=False)\nargs.n_gpu = torch.cuda.device_count()\n"
        'DEVICE = "cuda" if args.n_gpu > 0 else "cpu"'
    ),
    "mps first, by a function": (
        'def best():\n    if torch.backends.mps.is_available():\n        return "mps"\n'
        '    elif torch.cuda.is_available():\n        return "cuda"\n    return "cpu"\n\n\nDEVICE = best()'
    ),
    "by a class method": (
        "class Machine:\n    @staticmethod\n    def name():\n"
        '        return "cuda" if torch.cuda.is_available() else "cpu"\n\n    @classmethod\n'
        "    def device(cls):\n        return torch.device(cls.name())\n\n\nDEVICE = Machine.device()"
    ),
    "by the version of CUDA": 'DEVICE = "cuda" if torch.version.cuda and torch.cuda.is_available() else "cpu"',
    "by an update of a dict": (
        'settings = {}\nsettings.update(device="cuda" if torch.cuda.is_available() else "cpu")\n'
        'DEVICE = settings["device"]'
    ),
    "by a default of a dict": (
        'settings = {}\nsettings.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")\n'
        'DEVICE = settings["device"]'
    ),
}
ON_PURPOSE = {
    "a device": 'DEVICE = torch.device("cpu")',
    "a string": 'DEVICE = "cpu"',
    "beside one that is decided": """
OTHER = "cuda" if torch.cuda.is_available() else "cpu"
DEVICE = torch.device("cpu")""",
    "of a tensor": "DEVICE = torch.zeros(1).device",
    "by a later statement": 'DEVICE = "cuda" if torch.cuda.is_available() else "cpu"\nDEVICE = "cpu"',
    "by a switch that is off": """
USE_GPU = False
DEVICE = "cuda" if USE_GPU and torch.cuda.is_available() else "cpu\"""",
    "by an argument of the command": """
parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args(["--no-cuda"])
use_cuda = torch.cuda.is_available() and not args.no_cuda
DEVICE = torch.device("cuda" if use_cuda else "cpu")""",
    "by a switch of an object": """
class Config:
    def __init__(self, gpu=False):
        self.gpu = gpu
        self.device = torch.device("cuda" if self.gpu and torch.cuda.is_available() else "cpu")


config = Config()
DEVICE = config.device""",
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
    assert any(name in line for name in ("cuda", "accelerator", "mps"))
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
    "a property": """
class Config:
    @property
    def place(self):
        return torch.device(PLACE)


net = nn.Linear(2, 2).to(Config().place)


def step(model, x):
    net(model(x.to("cuda")))""",
    "a cached property": """
class Config:
    @functools.cached_property
    def place(self):
        return torch.device(PLACE)


config = Config()
net = nn.Linear(2, 2).to(config.place)


def step(model, x):
    net(model(x.to(config.place)))""",
    "an element that is read by its key": """
config = vars(argparse.Namespace())
config["place"] = PLACE
net = nn.Linear(2, 2).to(config["place"])


def step(model, x):
    net(model(x.to("cuda")))""",
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


def test_the_default_device_that_a_file_has_set(loaded):
    text = """
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
DEVICE = torch.get_default_device()"""
    try:
        assert rehearsed(loaded(text + STEP)).ok
    finally:
        torch.set_default_device(None)


# ---------------------------------------------------------------- mixed precision that was decided

KIND = """
device = "cuda" if torch.cuda.is_available() else "cpu"
kind = "cuda" if "cuda" in device else "cpu"
gpu = kind == "cuda"
"""
REGIONS = {
    "nothing on the cpu": "region = nullcontext() if kind == 'cpu' else torch.amp.autocast(device_type=kind)",
    "by a branch": """
if kind == "cuda":
    region = torch.autocast("cuda")
else:
    region = nullcontext()""",
    "the name of the device": "region = torch.autocast(device)",
    "the type of the device": "region = torch.autocast(torch.device(device).type)",
    "a switch": "region = torch.autocast(kind, enabled=gpu)",
}
WITHOUT = {
    "nothing": "region = nullcontext()",
    "off": "region = torch.autocast(device, enabled=False)",
    "off by a switch": "AMP = False\nregion = torch.autocast(device, enabled=AMP and gpu)",
    "nothing by a switch": "AMP = False\nregion = torch.autocast(kind) if AMP and gpu else nullcontext()",
    "nothing by a branch": """
AMP = False
if AMP and gpu:
    region = torch.autocast("cuda")
else:
    region = nullcontext()""",
}
LOWERED = """

def step(model, x):
    seen = []
    with region:
        seen.append(model(x.to(device)).dtype)
    assert seen == [torch.float16 if IS_ON else torch.float32], seen
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("how", [*REGIONS, *WITHOUT])
def test_a_region_is_the_one_there_would_be(loaded, how, within):
    made, step = {**REGIONS, **WITHOUT}[how], LOWERED.replace("IS_ON", str(how in REGIONS))
    text = made + step
    if within:
        inner = "\n".join(f"    {line}" for line in text.splitlines())
        text = f"\ndef make():\n{inner}\n    return step\n\n\nstep = make()\n"
    found = rehearsed(loaded(KIND + text))
    assert found.ok, str(found)


SCALERS = {
    "none on the cpu": ('scaler = torch.amp.GradScaler("cuda") if gpu else None', True),
    "of the device": ("scaler = torch.amp.GradScaler(device)", True),
    "a switch": ("scaler = torch.amp.GradScaler(device, enabled=gpu)", True),
    "off": ("scaler = torch.amp.GradScaler(device, enabled=False)", False),
    "none": ("scaler = None", False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", SCALERS)
def test_a_scaler_is_the_one_there_would_be(loaded, how):
    made, is_on = SCALERS[how]
    step = f"""


def step(model, x):
    assert (scaler is not None and scaler.is_enabled()) is {is_on}
    model(x.to(device))
"""
    module = loaded(KIND + made + step)
    before = module.scaler
    found = rehearsed(module)
    assert found.ok, str(found)
    assert module.scaler is before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", ["region", "scaler"])
def test_what_is_given_or_held_is_the_one_there_would_be(loaded, made):
    text = """
region = nullcontext() if kind == "cpu" else torch.autocast(kind)
scaler = torch.amp.GradScaler("cuda") if gpu else None


class Trainer:
    def __init__(self, kind):
        self.kind = kind
        self.region = nullcontext() if self.kind == "cpu" else torch.autocast(self.kind)
        self.scaler = torch.amp.GradScaler("cuda") if self.kind == "cuda" else None


def given(model, x, made):
    assert isinstance(made, (torch.autocast, torch.amp.GradScaler)), made
    model(x.to(device))


def held(model, x, trainer):
    assert isinstance(trainer.MADE, (torch.autocast, torch.amp.GradScaler)), trainer.MADE
    model(x.to(device))


def check(rehearse, model, x):
    trainer = Trainer(kind)
    return rehearse(given, model, x, MADE), rehearse(held, model, x, trainer)
""".replace("MADE", made)
    for found in loaded(KIND + text).check(tm.rehearse, nn.Linear(4, 2), torch.ones(3, 4)):
        assert found.ok, str(found)


@pytest.mark.filterwarnings("ignore")
def test_a_region_that_is_not_known_is_said(loaded):
    text = """

def chosen():
    return nullcontext() if kind == "cpu" else torch.autocast(kind)


region = chosen()


def step(model, x):
    with region:
        model(x.to(device))
"""
    found = rehearsed(loaded(KIND + text))
    assert any(each.startswith("region stays a nullcontext: ") for each in found.assumed), found.assumed
