"""All objects of some types that there are, as the collector knows them.

An object refers to its type, so that those who refer to some types are these objects, and little else: to look for them
is several times quicker than to be handed everything and to sift that.

The collector also knows tuples that other threads are only just making, and Python gives up on such a tuple when
somebody else holds it. So what it hands out is sifted within a single call into C, in which no other thread gets its
turn.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, compress, repeat, starmap
from typing import Any, TypeVar

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
