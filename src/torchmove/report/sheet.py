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


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def readable_bytes(count: int) -> str:
    """`1.5 GiB`: three digits are enough to read."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
