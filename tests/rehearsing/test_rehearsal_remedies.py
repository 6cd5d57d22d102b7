"""The remedy of a finding can be pasted, and mends it."""

from __future__ import annotations

import importlib
import linecache
import sys

import pytest
import torch
import torch.fx
from torch import nn

import torchmove as tm
from torchmove.rehearsing import provenance

BEFORE = """
import collections
import functools
import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

Pair = collections.namedtuple("Pair", "image caption")

class Graph:
    def __init__(self, x, b):
        self.x, self.b = x, b
    def to(self, device):
        self.x = self.x.to(device)
        return self

class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.first, s.second = nn.Linear(4, 4), nn.LayerNorm(4)
    def forward(s, x):
        return s.second(s.first(x))

@functools.lru_cache
def table():
    return torch.ones(4)

W = torch.randn(4, 4)
LIST = [torch.randn(4, 4)]

class Config:
    def __init__(self):
        self.prior, self.block, self.pair = torch.ones(4), Block(), Pair(torch.ones(4), None)
        self.shadow = {"a": torch.ones(4), "b": torch.ones(4)}

CONFIG = Config()
SCALED = functools.partial(torch.mul, other=torch.ones(4))
"""
X = torch.ones(3, 4)
# The body of a step(net, x), what else it is called with, and the remedies that are found.
FOUND = {
    "the second of two calls on a line": (
        "a, b = torch.tensor([7.0]), batch.cuda()\n    c = torch.tensor([1.0] * 4) * net(b) * torch.tensor([2.0] * 4)",
        lambda: X,
        ['torch.tensor([1.0] * 4, device="cuda")', 'torch.tensor([2.0] * 4, device="cuda")'],
    ),
    "the one of two calls on a line that is misplaced": (
        "a, b = torch.tensor([7.0]), net(batch.cuda()) * torch.tensor([2.0] * 4)",
        lambda: X,
        ['torch.tensor([2.0] * 4, device="cuda")'],
    ),
    "all of a list that was collected": (
        "ys = []\n    for each in batch:\n        ys.append(each['y'])\n    net(batch[0]['y'].cuda()) * torch.cat(ys)",
        lambda: [{"y": torch.ones(1, 4)}, {"y": torch.ones(2, 4)}],
        ['ys = [each.to("cuda") for each in ys]'],
    ),
    "a list that is handed to numpy": (
        "losses = [net(batch.to('cuda')).mean(), net(batch.to('cuda')).sum()]\n    np.mean(losses)",
        lambda: X,
        ["[each.detach().cpu().numpy() for each in losses]"],
    ),
    "what a method returns, handed to numpy": (
        "np.asarray(net(batch.to('cuda')).detach().argmax(1)) == 1",
        lambda: X,
        ["net(batch.to('cuda')).detach().argmax(1).cpu().numpy()"],
    ),
    "an object without a to": (
        "net(batch.to('cuda')) * CONFIG.prior",
        lambda: X,
        ['CONFIG.prior = CONFIG.prior.to("cuda") before the step; or pass CONFIG to tm.move and to tm.rehearse'],
    ),
    "a module of an object without a to": (
        "CONFIG.block(net(batch.to('cuda')))",
        lambda: X,
        ['CONFIG.block = CONFIG.block.to("cuda") before the step; or pass CONFIG to tm.move and to tm.rehearse'],
    ),
    "a dict of tensors": (
        "net(batch.to('cuda')) * CONFIG.shadow['a'] * CONFIG.shadow['b']",
        lambda: X,
        [
            'CONFIG.shadow = {key: each.to("cuda") for key, each in CONFIG.shadow.items()} before the step; '
            "or pass CONFIG to tm.move and to tm.rehearse"
        ],
    ),
    "a tensor in a tuple": (
        "net(batch.to('cuda')) * CONFIG.pair.image",
        lambda: X,
        ['create CONFIG.pair.image on "cuda"; or pass CONFIG to tm.move and to tm.rehearse'],
    ),
    "a tensor of a partial": (
        "SCALED(net(batch.to('cuda')))",
        lambda: X,
        [
            "SCALED.keywords['other'] = SCALED.keywords['other'].to(\"cuda\") before the step; "
            "or pass SCALED to tm.move and to tm.rehearse"
        ],
    ),
    "an element of a tuple under its own name": (
        "a, b = batch\n    net(a)",
        lambda: (X, X),
        ['a = a.to("cuda")'],
    ),
    "an element of a tuple": (
        "net(batch[1])",
        lambda: (X.clone(), X, X.clone()),
        ['batch = (*batch[:1], batch[1].to("cuda"), *batch[2:])'],
    ),
    "the first of a tuple": ("net(batch[0])", lambda: (X, X), ['batch = (batch[0].to("cuda"), *batch[1:])']),
    "a field of a namedtuple": (
        "net(batch.image)",
        lambda: SPACE["Pair"](X, X),
        ['batch = batch._replace(image=batch.image.to("cuda"))'],
    ),
    "a `to` that forgets": (
        'batch = batch.to("cuda")\n    net(batch.x) + batch.b',
        lambda: SPACE["Graph"](X, torch.ones(3, 4)),
        ['in Graph.to: self.b = self.b.to("cuda")'],
    ),
    "kept on the CPU": ('net(batch.to("cpu"))', lambda: X, ['net(batch.to("cuda"))']),
    "fetched": ('y = net(batch.to("cuda")).cpu()\n    net(y)', lambda: X, ['y = net(batch.to("cuda"))']),
    "the second of two modules": (
        'a = Block().to("cuda"); b = nn.LayerNorm(4)\n    b(a(batch.to("cuda")))',
        lambda: X,
        ['b = b.to("cuda")'],
    ),
    "a module of modules": ('m = Block(); m(batch.to("cuda"))', lambda: X, ['m = m.to("cuda")']),
    "a generator": (
        'g = torch.Generator()\n    net(batch.to("cuda") + torch.randn(3, 4, generator=g))',
        lambda: X,
        ['torch.randn(3, 4, generator=g).to("cuda")'],
    ),
    "numpy of an expression": (
        'x = batch.to("cuda")\n    (net(x) / 2).detach().numpy()',
        lambda: X,
        ["(net(x) / 2).detach().cpu().numpy()"],
    ),
    "what was computed from it": ("batch = batch * 2\n    net(batch)", lambda: X, ['batch = batch.to("cuda")']),
    "what was computed from what a loader delivers": (
        "for rows, in torch.utils.data.DataLoader(batch, 3):\n        rows = rows.view(-1, 4)\n        net(rows)",
        lambda: torch.utils.data.TensorDataset(X),
        ['rows = rows.to("cuda")'],
    ),
    "a copy whose sending is thrown away": (
        "for rows, in torch.utils.data.DataLoader(batch, 3):\n        rows = rows.clone()\n"
        "        rows.to(\"cuda\")\n        net(rows * 2)",
        lambda: torch.utils.data.TensorDataset(X),
        ['rows = rows.to("cuda")'],
    ),
    "a call of several lines": (
        "x = batch.to(\"cuda\")\n    noise = torch.full((3, 4), 2.0,\n        dtype=x.dtype)\n    net(x + noise)",
        lambda: X,
        ['torch.full((3, 4), 2.0, dtype=x.dtype, device="cuda")'],
    ),
    "an array on a line of its own": (
        "x = torch.from_numpy(\n        np.ones((3, 4), np.float32))\n    net(batch.to(\"cuda\") + x)",
        lambda: X,
        ['torch.from_numpy(np.ones((3, 4), np.float32)).to("cuda")'],
    ),
    "an average of statistics": (
        'update_bn(batch, nn.BatchNorm1d(4).to("cuda"))\n    net(torch.ones(3, 4, device="cuda"))',
        lambda: [(X, 0), (X, 1)],
        ["update_bn(batch, nn.BatchNorm1d(4).to(\"cuda\"), device=\"cuda\")"],
    ),
    "a cache": ('net(batch.to("cuda")) + table()', lambda: X, ["table.cache_clear()"]),
    "a global": (
        'net(batch.to("cuda")) @ W',
        lambda: X,
        ['W = W.to("cuda") before the step; or pass W to tm.move and to tm.rehearse'],
    ),
    "a list of the module's": (
        'net(batch.to("cuda")) @ LIST[0]',
        lambda: X,
        ['LIST[0] = LIST[0].to("cuda") before the step; or pass LIST to tm.move and to tm.rehearse'],
    ),
}  # fmt: skip
SPACE: dict = {"__name__": "remedies"}
exec(compile(BEFORE, "remedies.py", "exec"), SPACE)
SPACE["table"]()  # what is cached was made before


def step_of(body):
    text = f"{BEFORE}\ndef step(net, batch):\n    {body}\n"
    linecache.cache["remedies.py"] = (len(text), None, text.splitlines(keepends=True), "remedies.py")
    space = dict(SPACE)
    exec(compile(text, "remedies.py", "exec"), space)
    space["table"]()
    return space["step"]


# Which of the calls of a line is running: Python 3.10 does not tell.
WITHOUT_POSITIONS = {
    "the second of two calls on a line": ['torch.tensor(..., device="cuda")'],
    "the one of two calls on a line that is misplaced": ['torch.tensor(..., device="cuda")'],
    "what a method returns, handed to numpy": ["(...).cpu().numpy()"],
}


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_without_the_positions_of_calls_no_remedy_names_the_wrong_one(name, monkeypatch):
    monkeypatch.setattr(provenance.Running, "_end", lambda _: None)
    body, batch, _ = FOUND[name]
    found = tm.rehearse(step_of(body), torch.nn.Linear(4, 4), batch())
    assert [each.remedy for each in found.failing] == WITHOUT_POSITIONS[name], str(found)


@pytest.mark.parametrize("name", FOUND)
def test_the_remedy_is_what_mends_it(name):
    if sys.version_info < (3, 11) and name in WITHOUT_POSITIONS:
        pytest.skip("Python 3.10 does not tell which of the calls of a line is running")
    body, batch, remedies = FOUND[name]
    found = tm.rehearse(step_of(body), torch.nn.Linear(4, 4), batch())
    assert [each.remedy for each in found.failing] == remedies, str(found)


@pytest.mark.parametrize("name", ["an element of a tuple", "the first of a tuple", "a field of a namedtuple"])
def test_pasted_before_the_line_it_mends_it(name):
    body, batch, (remedy,) = FOUND[name]
    assert tm.rehearse(step_of(f"{remedy}\n    {body}"), torch.nn.Linear(4, 4), batch())


@pytest.mark.parametrize("name", ["kept on the CPU", "numpy of an expression"])
def test_pasted_in_its_place_it_mends_it(name):
    body, batch, (remedy,) = FOUND[name]
    *before, _ = body.split("\n    ")
    assert tm.rehearse(step_of("\n    ".join([*before, remedy])), torch.nn.Linear(4, 4), batch())


def test_a_copy_whose_sending_is_thrown_away_is_found_as_such():
    body, batch, _ = FOUND["a copy whose sending is thrown away"]
    (found,) = tm.rehearse(step_of(body), torch.nn.Linear(4, 4), batch()).failing
    assert found.kind == "thrown-away"


def test_a_tensor_that_a_library_refuses_is_found():
    def checks(*tensors):
        if len({each.device for each in tensors}) > 1:
            raise ValueError(f"tensors on one device, please, and not on {[str(each.device) for each in tensors]}")

    def step(net, x):
        here = net(x.to("cuda"))
        other = torch.ones(3)
        checks(here, other)

    found = tm.rehearse(step, torch.nn.Linear(4, 4), X)
    assert not found
    assert [each.remedy for each in found.failing] == ['torch.ones(3, device="cuda")']

    def own(net, x):
        here, other = net(x.to("cuda")), torch.ones(3)
        if here.device != other.device:
            raise ValueError(f"here is on {here.device} and the other on {other.device}")

    found = tm.rehearse(own, torch.nn.Linear(4, 4), X)
    assert (found.ending, [each.remedy for each in found.failing]) == ("device", ['torch.ones(3, device="cuda")'])


def test_what_a_library_wraps_around_a_limit_is_a_limit():
    class Image(torch.Tensor):
        pass

    def step(net, x):
        try:
            net(x.to("cuda")).as_subclass(Image)
        except RuntimeError as error:
            raise ValueError("could not transform") from error

    found = tm.rehearse(step, torch.nn.Linear(4, 4), X)
    assert found.ending == "limit"
    assert "associated to a python object" in found.stopped


def test_a_remedy_is_never_of_a_line_outside_of_the_step():
    def step(model, x):
        [each.to("cuda") for each in (x,)]
        model(x)

    model = nn.Linear(4, 2)
    kept = []
    kept.append(tm.rehearse(step, model, torch.ones(3, 4)))  # looks like a statement that throws a result away
    (found,) = kept
    assert [(each.kind, each.remedy) for each in found.failing] == [("thrown-away", 'x = x.to("cuda")')]


def test_variables_of_functions_have_their_own_names():
    offset, zeros = torch.ones(2), torch.zeros(2)

    def closure(model, x):
        return model(x.to("cuda")) + offset

    def default(model, x, bias=zeros):
        return model(x.to("cuda")) + bias

    def keyword(model, x, *, shift=zeros):
        return model(x.to("cuda")) + shift

    for step, name in ((closure, "offset"), (default, "bias"), (keyword, "shift")):
        (finding,) = tm.rehearse(step, nn.Linear(4, 2), torch.ones(3, 4)).failing
        assert finding.kind == "closure"
        assert f": {name} is on cpu: a function holds it" in finding.why
        assert finding.remedy.startswith(f'{name}.to("cuda") where the function reads it')


LIBRARY = """
import numpy
import torch
from torch import nn

def embed(net, input_ids):
    return net(input_ids)

def encode(rows):
    array = numpy.asarray(rows, dtype="float32")
    return torch.from_numpy(array)

def small_net():
    model = nn.Sequential(nn.Linear(4, 4))
    return model
"""
# The body of a step(net, batch), where `library` is an installed one; what is found, in words, and the remedy.
BY_A_LIBRARY = {
    "an element of a dict, which the library has a name for": (
        'library.embed(net, batch["input_ids"])',
        'batch["input_ids"] is on cpu',
        'batch["input_ids"] = batch["input_ids"].to("cuda")',
    ),
    "what the library makes of numbers": (
        "net(library.encode([[1, 2, 3, 4]]))",
        "created on cpu by torch.from_numpy in library.py:11, which this line calls",
        'pass it a device or tensors on "cuda", or move its result there with .to("cuda")',
    ),
    "a module that the library builds": (
        'own = library.small_net()\n    own(batch["input_ids"].to("cuda"))',
        "the module Linear was built on cpu in the step and not moved (remedies.py:41)",
        'own = own.to("cuda")',
    ),
}


@pytest.mark.parametrize("name", BY_A_LIBRARY)
def test_what_a_library_does_is_told_in_the_users_names(name, tmp_path, monkeypatch):
    body, words, remedy = BY_A_LIBRARY[name]
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.delitem(sys.modules, "library", raising=False)
    step = step_of(body)
    step.__globals__["library"] = importlib.import_module("library")
    found = tm.rehearse(step, torch.nn.Linear(4, 4), {"input_ids": X})
    ((why, fix),) = [(each.why, each.remedy) for each in found.failing]
    assert (words in why, fix) == (True, remedy), str(found)


def test_code_that_torch_has_written_is_not_the_users():
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    traced = torch.fx.symbolic_trace(Scaled(4, 4))

    def step(net):
        net(torch.ones(2, 4))

    found = tm.rehearse(step, traced)
    assert [(each.code, each.remedy) for each in found.failing] == [
        ("net(torch.ones(2, 4))", 'torch.ones(2, 4, device="cuda")')
    ], str(found)


@pytest.mark.parametrize("kind", [dict, list])
def test_a_copy_of_weights_that_was_made_before_they_were_moved(kind):
    def step():
        net = torch.nn.Linear(4, 4)
        weights = {name: each.detach().clone() for name, each in net.named_parameters()}
        shadow = weights if kind is dict else [*weights.values()]
        net.to("cuda")
        shadow["weight" if kind is dict else 0].lerp_(net.weight.detach(), 0.1)

    found = tm.rehearse(step)
    assert [each.kind for each in found.failing] == ["factory"], str(found)
    assert "a copy of a tensor of Linear, created on cpu before Linear was moved" in found.failing[0].why
