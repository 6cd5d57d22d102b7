"""What a result shows, as data: a sheet for a terminal (a title, lines, tables) and a page for a browser.

A page has figures, points, bars, a timeline, tables, and the state. All are optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from torchmove.reporting.drawing import DrawnState

# ---------------------------------------------------------------- sheets


SHOWN_ROWS = 40


# Columns of numbers and sizes: aligned at the right, and never cut.
NUMBERS = frozenset(
    {
        *("bytes", "tensors", "storages", "size", "rank", "seconds", "GB/s", "still held"),
        *("parameters", "trainable", "params", "buffers", "grads", "state", "other"),
    }
)


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


# ---------------------------------------------------------------- pages


Tone = Literal["bad", "good", "plain"]


class Figure(NamedTuple):
    """A number shown in large type, with its name and a note in small type."""

    name: str
    value: str
    note: str = ""
    tone: Tone = "plain"


class Point(NamedTuple):
    """A refusal, a finding or a note about a path or a line of code; `quote` is that line."""

    code: str
    where: str
    why: str
    remedy: str = ""
    quote: str = ""


class Points(NamedTuple):
    """A titled list of points."""

    title: str
    points: tuple[Point, ...]
    tone: Tone = "plain"


class SizeBar(NamedTuple):
    """A bar of sizes in bytes, by part."""

    title: str
    parts: tuple[tuple[str, int], ...]


class Timeline(NamedTuple):
    """Consecutive stages: name, seconds, and a note."""

    title: str
    stages: tuple[tuple[str, float, str], ...]


class Page(NamedTuple):
    """What a result shows in a browser; `kind` is the name of its class."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    points: tuple[Points, ...] = ()
    timeline: Timeline | None = None
    bars: tuple[SizeBar, ...] = ()
    tables: tuple[Table, ...] = ()
    state: DrawnState | None = None


def page_of(kind: str, sheet: Sheet) -> Page:
    """The page of a result that shows only its sheet."""
    return Page(kind, sheet.title, lines=sheet.lines, tables=sheet.tables)
