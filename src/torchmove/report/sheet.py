"""A sheet: a title, a few lines, some tables. What every noun can be written as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

SHOWN_ROWS = 40
_SHOWN_NAMES, _SHOWN_LETTERS = 6, 100


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


def listed(names: Sequence[object], between: str = ", ") -> str:
    """All of them where they are few, else the first of them and a number: a heading is for reading."""
    shown = [_cut(str(name)) for name in names[:_SHOWN_NAMES]]
    left_out = len(names) - len(shown)
    return between.join(shown) + (f" and {left_out} more" if left_out else "")


def _cut(name: str) -> str:
    return name if len(name) <= _SHOWN_LETTERS else f"{name[: _SHOWN_LETTERS - 3]}..."


def first_of(lines: Sequence[object]) -> tuple[str, ...]:
    """As many lines as a table has rows."""
    left_out = len(lines) - SHOWN_ROWS
    rest = (f"... and {left_out} more: to_json() has all of them",) if left_out > 0 else ()
    return *map(str, lines[:SHOWN_ROWS]), *rest


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def readable_bytes(count: int) -> str:
    """`1.5 GiB`: three digits are enough to read."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{count} B"
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"  # 1010 KiB, not 1.01e+03


def readable_seconds(seconds: float) -> str:
    """`1.5 ms`: three digits are enough to read."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
