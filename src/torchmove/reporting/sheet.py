"""A sheet: a title, a few lines, some tables. What every noun can be written as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

SHOWN_ROWS = 40


class Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


class Sheet(NamedTuple):
    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, total: int) -> Table:
    """The first rows of `total`; only those are turned into text."""
    shown = tuple(tuple(str(cell) for cell in row) for row in islice(rows, SHOWN_ROWS))
    return Table(title, tuple(columns), shown, max(0, total - len(shown)))


def first_of(lines: Sequence[object]) -> tuple[str, ...]:
    """As many lines as a table has rows."""
    left_out = len(lines) - SHOWN_ROWS
    rest = (f"... and {left_out} more: to_json() has all of them",) if left_out > 0 else ()
    return *map(str, lines[:SHOWN_ROWS]), *rest
