"""An `lru_cache` that a step may fill. What it keeps inside hangs together in C: it is looked at, and never changed."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable
from typing import Any


def insides_of(holders: Iterable[Any]) -> list[dict[Any, Any]]:
    """The dicts that the caches among these work with."""
    return [_inside(each) for each in holders if isinstance(each, functools._lru_cache_wrapper)]


def entries_of(cache: functools._lru_cache_wrapper[Any]) -> list[Any]:
    """The keys and the results, and what else it refers to. Without a bound, its dict has the results."""
    inside = _inside(cache)
    return [*gc.get_referents(cache), *inside, *inside.values()]


def clear_if_filled(cache: functools._lru_cache_wrapper[Any], before: list[Any]) -> None:
    """What the step has added may hold stand-ins, and no single entry can be taken out."""
    known = {*map(id, before)}
    if any(id(each) not in known for each in entries_of(cache)):
        cache.cache_clear()


def _inside(cache: functools._lru_cache_wrapper[Any]) -> dict[Any, Any]:
    attributes = cache.__dict__
    # It comes after the entries, among which may be dicts too.
    return [each for each in gc.get_referents(cache) if type(each) is dict and each is not attributes][-1]
