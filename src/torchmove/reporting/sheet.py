"""A sheet: a title, lines and tables. Every result has one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

SHOWN_ROWS = 40


class Table(NamedTuple):
    """A table of text; `left_out` is the number of rows not shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


class Sheet(NamedTuple):
    """A result as text: a title, lines and tables."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, total: int) -> Table:
    """A table of the first rows of `total`; only those are converted to text."""
    shown = tuple(tuple(str(cell) for cell in row) for row in islice(rows, SHOWN_ROWS))
    return Table(title, tuple(columns), shown, max(0, total - len(shown)))


def first_of(lines: Sequence[object]) -> tuple[str, ...]:
    """The first SHOWN_ROWS lines, and the number of those left out."""
    left_out = len(lines) - SHOWN_ROWS
    rest = (f"... and {left_out} more: to_json() has all of them",) if left_out > 0 else ()
    return *map(str, lines[:SHOWN_ROWS]), *rest
