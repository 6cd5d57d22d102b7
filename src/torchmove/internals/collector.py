"""Find all live objects of some types with the garbage collector, and keep the collector from running during a move.

An object refers to its type, so `gc.get_referrers` of some types returns their instances and little else. That is
several times faster than filtering `gc.get_objects()`.

The collector also returns tuples that other threads are still building, and Python raises if such a tuple has another
reference. So the result is filtered within a single C call, during which no other thread runs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from itertools import chain, compress, repeat, starmap
from typing import Any, TypeVar

from torchmove.internals.switch import Switch, under

T = TypeVar("T")


def everything_of(*kinds: type[T]) -> list[T]:
    """Every object of the given types or their subclasses that the collector tracks."""
    # The iterator gets no name here, so that it is freed with the call that exhausts it.
    return list(_instances(_with_subclasses(kinds)))


def _instances(kinds: set[type]) -> Iterator[Any]:
    # Each object comes twice in a row, once to read its type. (itertools.tee would hold references to some of them.)
    twice = chain.from_iterable(map(repeat, chain.from_iterable(starmap(gc.get_referrers, [tuple(kinds)])), repeat(2)))
    return compress(twice, map(kinds.__contains__, map(type, twice)))


def _with_subclasses(kinds: tuple[type, ...]) -> set[type]:
    found: set[type] = set()
    todo = [*kinds]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += type.__subclasses__(each)
    return found


_MANY_OBJECTS = 5000  # collecting fewer takes no measurable time
# Some builds of Python freeze a few hundred objects at start, which may be unfrozen. A program that calls gc.freeze has
# thousands by then, which must stay frozen.
_FROZEN_BY_PYTHON = 1000
_SHARE = 100  # a full collection takes at most one part in this many of the time


class _WithoutCollector(Switch):
    def __init__(self) -> None:
        self._was_on = gc.isenabled() and gc.get_threshold()[0] > 0
        if self._was_on:
            _in_time.collect()
        self._before = gc.get_count()[0]

    def switch(self) -> None:
        if self._was_on:
            gc.disable()

    def restore(self) -> None:
        if not self._was_on or gc.isenabled():
            return
        try:
            if gc.get_count()[0] - self._before > _MANY_OBJECTS and gc.get_freeze_count() < _FROZEN_BY_PYTHON:
                # Move all objects to the oldest generation, or the next allocation would collect all of them. In a
                # single C call: an interrupt in between would leave everything frozen.
                list(chain(starmap(gc.freeze, [()]), starmap(gc.unfreeze, [()])))
                _in_time.is_owed = True
        finally:
            gc.enable()


without_collector = under(_WithoutCollector)
"""A decorator that turns the collector off: collecting meanwhile would find nothing, and take as long as the work."""


class _InTime:
    """Runs a full collection when one is due.

    Objects that were moved to the oldest generation may include garbage of the program, and the move resets the
    collector's record of when it last collected that generation. A program that moves repeatedly would never free it.
    So this collects it, unless the collector did so itself. It runs before a move and not after one, so that a Ctrl-C
    meanwhile interrupts no finished work.
    """

    def __init__(self) -> None:
        self.is_owed = False
        self.since, self.seconds = time.perf_counter(), 0.01
        self.collections = _full_collections()

    def collect(self) -> None:
        if not self.is_owed:
            return
        now = time.perf_counter()
        if _full_collections() == self.collections:
            if now - self.since < _SHARE * self.seconds:
                return
            gc.collect()
            self.seconds = time.perf_counter() - now
        self.is_owed, self.since, self.collections = False, time.perf_counter(), _full_collections()


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


_in_time = _InTime()
