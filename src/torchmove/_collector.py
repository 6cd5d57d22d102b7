"""Python's garbage collector, kept out of the way of work that makes many small objects and keeps all of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 5000  # objects; the collector looks through fewer in no time
# Some Pythons freeze a few hundred objects of their own when they start, and can do without that. What a program
# freezes is all it has by then, thousands, and stays frozen.
_OF_PYTHON = 1000
_SHARE = 100  # one part in so many of the time goes to collecting everything


@contextmanager
def without_collector() -> Iterator[None]:
    """Collecting in between would find nothing, and cost as much as the work."""
    enabled, before = gc.isenabled(), gc.get_count()[0]
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            are_many = gc.get_count()[0] - before > _MANY and gc.get_freeze_count() < _OF_PYTHON
            if are_many:
                # Off to the oldest generation, or the next allocation would have the collector look at all of them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
            if are_many:
                _in_time.collect()


class _InTime:
    """Collects everything when it is time to.

    Sent to the oldest generation, the garbage of others is there too, and the collector has forgotten for how long it
    has not looked at that: who moves again and again would never be rid of it. So it is looked at here, unless the
    collector has done so itself.
    """

    def __init__(self) -> None:
        self.since, self.seconds = time.perf_counter(), 0.1
        self.collections = _full_collections()

    def collect(self) -> None:
        now = time.perf_counter()
        if _full_collections() != self.collections:
            self.since = now
        elif now - self.since > _SHARE * self.seconds:
            gc.collect()
            self.since = time.perf_counter()
            self.seconds = self.since - now
        self.collections = _full_collections()


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


_in_time = _InTime()
