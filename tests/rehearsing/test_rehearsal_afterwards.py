"""What holds a tensor or a place after a rehearsal: restored, or named, and never silently wrong."""

from __future__ import annotations

import array
import collections
import functools
import gc
import itertools
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import torchmove as tm

X = torch.ones(2, 4)


def net():
    return nn.Linear(4, 4)


# ---------------------------------------------------------------- stand-ins that outlive their rehearsal


def keeping():
    kept = []
    while True:
        kept.append((yield kept))


def left_over(**options):
    """The result of a step, kept where a rehearsal cannot look."""
    kept = keeping()
    next(kept)

    def step(model, x):
        kept.send(model(x.to("cuda")))

    assert tm.rehearse(step, net(), X, **options).ok
    return next(kept)[0]


USES = {
    "added": lambda each: each + 1,
    "added to a real one": lambda each: torch.ones(4) + each,
    "given to a model": net(),
    "read": lambda each: each.sum().item(),
    "read as a list": lambda each: each.tolist(),
    "read by numpy": lambda each: each.numpy(),
    "read by numpy's function": np.asarray,
    "differentiated": lambda each: each.sum().backward(),
    "written to": lambda each: torch.zeros(2, 4).copy_(each),
    "changed": lambda each: each.zero_(),
    "copied": lambda each: each.clone(),
    "sent": lambda each: each.to("meta"),
    "pickled": pickle.dumps,
}


@pytest.mark.parametrize("data", ["shapes", "real"])
@pytest.mark.parametrize("use", USES)
def test_a_stand_in_that_outlives_its_rehearsal_refuses_to_be_used(use, data):
    left = left_over(data=data)
    with pytest.raises(
        RuntimeError, match=r"stand-in of the rehearsal of .*step, which has ended.* Fix: create the object"
    ):
        USES[use](left)


def test_a_stand_in_that_outlives_its_rehearsal_prints_what_it_is():
    assert repr(left_over()).endswith("a stand-in of a rehearsal that has ended")


def test_a_stand_in_of_an_earlier_rehearsal_ends_the_next_one():
    left = left_over()

    def step(model, x):
        return model(x.to("cuda")) + left

    for each in (lambda: tm.rehearse(step, net(), X), lambda: tm.rehearse(lambda model, x: model(x), net(), left)):
        found = each()
        assert (found.ok, found.ending) == (False, "limit")
        assert "which has ended" in found.stopped


def running_mean():
    mean = torch.zeros(4)
    while True:
        mean = mean + 1
        yield mean


def test_a_generator_that_the_step_advanced_is_named_and_fails_instead_of_training_with_nothing():
    means, model = running_mean(), net()

    def step(model):
        return model(next(means).to("cuda")).sum()

    found = tm.rehearse(step, model)
    assert found.ok
    assert [each for each in found.assumed if "means (a generator) was advanced" in each]
    with pytest.raises(RuntimeError, match="which has ended"):
        model(next(means)).sum().backward()
    assert model.weight.grad is None


# ---------------------------------------------------------------- holders of Python's own

WAITING, RANKED, SIMPLE = queue.Queue(), queue.PriorityQueue(), queue.SimpleQueue()
LOCAL, CONTEXT, LAYERS = threading.local(), ContextVar("context"), collections.ChainMap({"kept": 1}, {})
USERS = collections.UserDict(kept=1)


class Anchor:
    pass


ANCHOR = Anchor()
WEAK_KEYS, WEAK_VALUES = weakref.WeakKeyDictionary({ANCHOR: 1}), weakref.WeakValueDictionary(kept=ANCHOR)
BYTES, NUMBERS = bytearray(b"abc"), array.array("i", [1, 2, 3])
VIEW = memoryview(BYTES)


def contents():
    context = CONTEXT.get(None)
    held = (dict(vars(LOCAL)), context, [dict(each) for each in LAYERS.maps], dict(USERS))
    return held, dict(WEAK_KEYS), dict(WEAK_VALUES), bytes(BYTES), list(NUMBERS), list(WAITING.queue), SIMPLE.qsize()


def fill(model, x):
    h = model(x.to("cuda")).detach()
    WAITING.get(), WAITING.put(h), SIMPLE.get(), SIMPLE.put(h), SIMPLE.put(h), RANKED.put((1, h))
    LOCAL.h = LAYERS["h"] = USERS["h"] = WEAK_KEYS[model] = h
    CONTEXT.set(h)
    WEAK_VALUES["h"] = h
    VIEW[0], NUMBERS[1] = 0, 7


@pytest.mark.parametrize("raised", [None, ValueError, KeyboardInterrupt])
def test_queues_and_other_holders_of_pythons_own_have_what_they_had(raised):
    def step(model, x):
        fill(model, x)
        if raised:
            raise raised

    WAITING.put("first"), WAITING.put("second"), SIMPLE.put("only")
    before = contents()
    with pytest.raises(KeyboardInterrupt) if raised is KeyboardInterrupt else nullcontext():
        tm.rehearse(step, net(), X)
    assert contents() == before
    assert (WAITING.get(), WAITING.get(), SIMPLE.get(), RANKED.qsize()) == ("first", "second", "only", 0)
    assert CONTEXT.get("unset") == "unset"


class Trainer:
    def __init__(self):
        self.model, self.waiting, self.simple = net(), queue.LifoQueue(), queue.SimpleQueue()
        self.local, self.bytes = threading.local(), bytearray(2)
        self.numbers, self.later = itertools.count(3), {"next": iter([1, 2])}

    def step(self, x):
        h = self.model(x.to("cuda"))
        self.waiting.put(h), self.simple.put(h)
        self.local.h, self.bytes[0] = h, next(self.numbers)
        next(self.later["next"])


def test_holders_and_iterators_in_an_object_have_what_they_had():
    trainer = Trainer()
    numbers = trainer.numbers
    assert tm.rehearse(trainer.step, X).ok
    assert (trainer.waiting.qsize(), trainer.simple.qsize(), vars(trainer.local)) == (0, 0, {})
    assert (trainer.bytes, trainer.numbers is numbers) == (bytearray(2), True)
    assert (next(trainer.numbers), next(trainer.later["next"])) == (3, 1)


# ---------------------------------------------------------------- iterators

COPIED = {
    "list": lambda: iter([0, 1, 2]),
    "tuple": lambda: iter((0, 1, 2)),
    "range": lambda: iter(range(3)),
    "text": lambda: map(int, iter("012")),
    "dict": lambda: iter({0: "a", 1: "b"}),
    "set": lambda: iter({0}),
    "reversed": lambda: reversed([1, 0]),
    "count": itertools.count,
    "cycle": lambda: itertools.cycle([0, 1]),
    "enumerate": lambda: enumerate("ab"),
    "zip": lambda: zip(itertools.count(), [1, 2], strict=False),
    "strict zip": lambda: zip([1, 2], (3, 4), strict=True),
}


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", COPIED)
def test_an_iterator_that_can_be_copied_is_where_it_was(kind, steps):
    given, closed, like = (COPIED[kind]() for _ in range(3))
    for each in (given, closed, like):
        for _ in range(steps):
            next(each, None)

    def step(model, x, given):
        for each in (given, closed):
            next(each, None), next(each, None)
        return model(x.to("cuda"))

    found = tm.rehearse(step, net(), X, given)
    assert (found.ok, [each for each in found.assumed if "advanced" in each]) == (True, [])
    assert next(given, None) == next(closed, None) == next(like, None)


BATCHES = iter(DataLoader(torch.arange(3.0)[:, None], batch_size=1))
STREAM = (number for number in range(9))
UNTOUCHED = (number for number in range(9))


def advance(model, numbers, held):
    model(next(BATCHES).expand(1, 4).to("cuda"))
    next(numbers), next(STREAM), next(held["words"])
    return UNTOUCHED


def test_iterators_that_cannot_be_copied_are_named():
    step = functools.partial(advance, held={"words": (each for each in "abc")})
    found = tm.rehearse(step, net(), zip((i for i in range(3)), "ab", strict=False))
    names = {each.partition(" was advanced")[0] for each in found.assumed if "cannot be reset: create it" in each}
    assert (found.ok, len(names)) == (True, 4)
    assert {"BATCHES (the iterator of a DataLoader)", "STREAM (a generator)"} < names
    assert any(each.endswith("(zip)") for each in names)
    assert any("words" in each for each in names)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_iterator_of_a_loader_goes_on_where_the_step_left_it(workers):
    trainer = Trainer()
    trainer.batches = iter(DataLoader(torch.arange(5.0)[:, None], batch_size=1, num_workers=workers))
    found = tm.rehearse(lambda trainer: trainer.model(next(trainer.batches).expand(1, 4).to("cuda")), trainer)
    said = [each for each in found.assumed if "advanced" in each]
    assert (found.ok, len(said), "(the iterator of a DataLoader)" in said[0]) == (True, 1, True)
    assert torch.cat([*trainer.batches]).flatten().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_pool_of_threads_works_on():
    trainer = Trainer()
    trainer.pool = ThreadPoolExecutor(1)
    with trainer.pool:
        step = lambda trainer, x: trainer.model(trainer.pool.submit(lambda: x.to("cuda")).result())  # noqa: E731
        assert tm.rehearse(step, trainer, X).ok
        assert trainer.pool.submit(lambda: 2).result(timeout=30) == 2


@pytest.mark.parametrize("make", [lambda: iter([torch.ones(1)] * 3), lambda: (torch.ones(1) for _ in range(3))])
def test_an_iterator_that_stays_where_it_is_is_not_named(make):
    given = make()
    next(given)
    found = tm.rehearse(lambda model, x, given: model(x.to("cuda")), net(), X, given)
    assert (found.ok, [each for each in found.assumed if "advanced" in each]) == (True, [])
    assert len([*given]) == 2


# ---------------------------------------------------------------- modes

PRINTED = """
import random, torch, torchmove as tm
found = tm.rehearse(lambda model, x: model(x.to("cuda")), torch.nn.Linear(4, 4), torch.ones(2, 4))
random.seed(0)
before = random.getstate()
str(found), repr(found), found.to_html(), found.to_json()
print(random.getstate() == before)
"""


def test_printing_a_result_leaves_pythons_random_numbers_alone():
    ran = subprocess.run([sys.executable, "-c", PRINTED], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


LOGGER = logging.getLogger(__name__)
tiny = sys.float_info.min


def switched():
    sparse = torch.sparse.check_sparse_tensor_invariants
    return {
        "printing": (str(torch.tensor(0.12345)), str(np.float64(0.1)), str(np.array([0.12345678]))),
        "numpy's errors": np.geterr(),
        "denormal numbers": tiny / 2,
        "invariants": sparse.is_enabled(),
        "threads of autograd": torch._C._is_multithreading_enabled(),
        "parameters": torch.__future__.get_overwrite_module_params_on_conversion(),
        "kernels": (torch.backends.mkldnn.enabled, torch.backends.opt_einsum.enabled),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "logging": (LOGGER.level, logging.root.level, logging.root.manager.disable, list(LOGGER.handlers)),
        "warnings": list(warnings.filters),
        "recursion": sys.getrecursionlimit(),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "names": (hasattr(torch, "of_mine"), hasattr(nn.Linear, "of_mine"), hasattr(torch.Tensor, "of_mine")),
        "functions": (nn.functional.relu, nn.Linear.forward),
    }


def switch(h, folder):
    torch.set_printoptions(precision=1), np.set_printoptions(precision=1), np.seterr(all="ignore")
    torch.set_flush_denormal(True), torch.sparse.check_sparse_tensor_invariants.enable()
    torch.autograd.set_multithreading_enabled(False), torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.backends.opt_einsum.enabled = False
    os.environ["OF_MINE"], os.environ["PATH"] = "1", ""
    os.chdir(folder)
    LOGGER.setLevel(logging.ERROR), logging.root.setLevel(logging.DEBUG), logging.disable(logging.INFO)
    LOGGER.addHandler(logging.NullHandler())
    warnings.simplefilter("error")
    sys.setrecursionlimit(sys.getrecursionlimit() + 7)
    gc.disable(), gc.set_threshold(11)
    torch.of_mine = nn.Linear.of_mine = torch.Tensor.of_mine = h
    nn.functional.relu = nn.Linear.forward = torch.relu


@pytest.mark.parametrize("raised", [None, ValueError])
def test_modes_of_torch_numpy_and_python_are_put_back(tmp_path, raised):
    def step(model, x):
        switch(model(x.to("cuda")), tmp_path)
        assert switched() != before
        if raised:
            raise raised

    before = switched()
    found = tm.rehearse(step, net(), X)
    assert switched() == before
    assert found.ending == ("finished" if raised is None else "error"), str(found)
