"""Python's garbage collector, kept out of the way of work that makes many small objects and keeps all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Some Pythons freeze a few hundred objects of their own when they start, and can do without that. What a program
# freezes is all it has by then, thousands, and stays frozen.
_OF_PYTHON = 1000


@contextmanager
def without_collector() -> Iterator[None]:
    """Collecting in between would find nothing, and cost as much as the work."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            # Off to the oldest generation, or the next allocation would have the collector look at all of them at once.
            if gc.get_freeze_count() < _OF_PYTHON:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
