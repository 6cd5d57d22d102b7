"""All objects of some types that there are, as the collector knows them.

An object refers to its type, so that those who refer to some types are these objects, and little else: to look for them
is several times quicker than to be handed everything and to sift that.

The collector also knows tuples that other threads are only just making, and Python gives up on such a tuple when
somebody else holds it. So what it hands out is sifted within a single call into C, in which no other thread gets its
turn.
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
    """Every tracked object of some types or of those below them."""
    # The sieve has no name here: it goes with the call that empties it.
    return list(_sieve(_below(kinds)))


def _sieve(kinds: set[type]) -> Iterator[Any]:
    # Each object comes twice in a row, once to be asked for its type. (A tee would hold itself, and some with it.)
    twice = chain.from_iterable(map(repeat, chain.from_iterable(starmap(gc.get_referrers, [tuple(kinds)])), repeat(2)))
    return compress(twice, map(kinds.__contains__, map(type, twice)))


def _below(kinds: tuple[type, ...]) -> set[type]:
    found: set[type] = set()
    todo = [*kinds]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += type.__subclasses__(each)
    return found


_MANY = 5000  # objects; the collector looks through fewer in no time
# Some Pythons freeze a few hundred objects of their own when they start, and can do without that. What a program
# freezes is all it has by then, thousands, and stays frozen.
_OF_PYTHON = 1000
_SHARE = 100  # one part in so many of the time goes to collecting everything


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
            if gc.get_count()[0] - self._before > _MANY and gc.get_freeze_count() < _OF_PYTHON:
                # Off to the oldest generation, or the next allocation would have the collector look at all of them. In
                # a single call into C: in between, everything would stay frozen.
                list(chain(starmap(gc.freeze, [()]), starmap(gc.unfreeze, [()])))
                _in_time.is_owed = True
        finally:
            gc.enable()


without_collector = under(_WithoutCollector)
"""A decorator: collecting in between would find nothing, and cost as much as the work."""


class _InTime:
    """Collects everything when it is time to.

    Sent to the oldest generation, the garbage of others is there too, and the collector has forgotten for how long it
    has not looked at that: who moves again and again would never be rid of it. So it is looked at here, unless the
    collector has done so itself. Before the work, not after it: a Ctrl-C that comes meanwhile meets nothing done.
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
