"""The garbage collector is out of the way of a move, and is afterwards what it was before."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from torchmove.internals import guards as _collector
from torchmove.internals.guards import without_collector
from torchmove.testing import refresh


@pytest.fixture(autouse=True)
def _collecting(monkeypatch, unfrozen, _collected_between_tests):
    monkeypatch.setattr(_collector, "_SHARE", 100)
    gc.set_threshold(700, 10, 10)
    yield
    gc.enable()


@pytest.fixture
def collections():
    seen = []

    def note(phase, info):
        seen.append(phase)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@without_collector
def make_many(count):
    assert not gc.isenabled() or not gc.get_threshold()[0]
    return [[] for _ in range(count)]


class Cycle:
    def __init__(self):
        self.me = self


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2000], ids=["small", "large"])
@pytest.mark.parametrize("frozen", [0, 375])
def test_garbage_is_collected_however_often_a_state_moves(monkeypatch, size, frozen):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(_collector, "_SHARE", 0)  # time enough has passed
    state = [torch.ones(1) for _ in range(size)]
    garbage = []
    for _ in range(2000 if size == 1 else 10):
        garbage.append(weakref.ref(Cycle()))
        refresh(state)
    assert sum(each() is not None for each in garbage) < len(garbage) / 2


def test_a_full_collection_of_python_itself_counts(monkeypatch, collections):
    in_time = _collector._InTime()

    def owe():
        in_time.is_owed, in_time.since = True, -1e9

    owe()
    gc.collect()
    collections.clear()
    in_time.collect()
    assert collections == []
    owe()
    in_time.collect()
    assert collections == ["start", "stop"]
    in_time.collect()
    assert collections == ["start", "stop"]


def test_who_has_set_the_threshold_to_nothing_has_nothing_collected(monkeypatch, collections):
    monkeypatch.setattr(_collector, "_SHARE", 0)
    threshold = gc.get_threshold()
    gc.set_threshold(0)
    try:
        for _ in range(3):
            made = make_many(20_000)
    finally:
        gc.set_threshold(*threshold)
    assert len(made) == 20_000
    assert collections == []


@pytest.mark.parametrize("frozen", [0, 375])
def test_many_new_objects_do_not_make_it_run(collections, monkeypatch, frozen):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)  # as Python 3.12 answers from the start
    gc.collect()
    collections.clear()
    made = make_many(100_000)
    made.append([])
    assert collections == []
    assert gc.isenabled()


def test_what_a_program_has_frozen_stays_so():
    state = [torch.ones(1) for _ in range(5000)]
    gc.freeze()
    count = gc.get_freeze_count()
    refresh(state)
    assert gc.get_freeze_count() >= count - 100  # objects also end


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    make_many(1)
    assert not gc.isenabled()
