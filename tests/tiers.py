"""The tiers of the tests: `make test` runs the quick one (`pytest --quick`), `make test-all` runs all.

The quick tier leaves out what is marked `slow`. Of the parameters of a test marked `sampled(rows)` it runs so many,
drawn with a fixed seed: they stay the same ones when other parameters are added or a file is renamed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

SEED = "0"


def parted(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of the quick tier and those that it leaves to the full one, both in their order."""
    quick = {id(item) for item in _quick(items)}
    return [item for item in items if id(item) in quick], [item for item in items if id(item) not in quick]


def _quick(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    for rows in _by_function([item for item in items if not item.get_closest_marker("slow")]):
        sampled = rows[0].get_closest_marker("sampled")
        yield from _drawn(rows, *sampled.args) if sampled else rows


def _drawn(rows: Sequence[pytest.Item], count: int) -> Sequence[pytest.Item]:
    if count < 1:
        raise ValueError(f"{rows[0].nodeid}: a sample has at least one row")
    return sorted(rows, key=_draw)[:count]


def _by_function(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    rows: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        rows[item.nodeid.partition("[")[0]].append(item)
    return [*rows.values()]


def _draw(item: pytest.Item) -> bytes:
    return hashlib.sha256(f"{SEED} {item.name}".encode()).digest()
