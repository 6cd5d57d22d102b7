"""Python's garbage collector, kept out of the way of work that makes many small objects and keeps all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
