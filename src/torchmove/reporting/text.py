"""Render a sheet as text, with rich. Tables fit the terminal; in a pipe or a file nothing is cut."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import IO

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table as RichTable
from rich.text import Text
from rich.theme import Theme

from torchmove.reporting.page import NUMBERS, Sheet, Table

# Lines are not wrapped or cut, so that paths can be copied; a narrower terminal wraps them itself.
UNLIMITED = 10_000
_GAP, _NARROW_GAP = 3, 2  # blanks between columns
_SHORTEST_FIRST, _SHORTEST = 20, 9  # the first column names what a row is about


class _Codes(RegexHighlighter):
    """Highlights the codes of refusals, findings and notes, and `Fix:`."""

    highlights = [r"(?P<bad>\b[RV]\d{3}\b)", r"(?P<note>\bN\d{3}\b)", r"(?P<note>\bFix:)"]  # noqa: RUF012


_THEME = Theme({"bad": "bold red", "note": "cyan"})


def terminal_width(stream: IO[str] | None) -> int | None:
    """The columns of the terminal that a stream writes to; None if it is not a terminal."""
    try:
        if stream is None or not stream.isatty():
            return None
        known = os.environ.get("COLUMNS", "")
        return int(known) if known.isdecimal() and int(known) else os.get_terminal_size(stream.fileno()).columns or None
    except (AttributeError, OSError, ValueError):
        return None


def render(sheet: Sheet, *, color: bool = False, width: int | None = None) -> str:
    """The sheet as text. With a width, its tables take no more columns."""
    page = io.StringIO()
    console = Console(
        file=page,
        width=UNLIMITED,
        height=1,  # with a width alone, rich takes 80 columns where TERM is "dumb"
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,  # in Jupyter rich would display the text instead of returning it
        no_color=False,
        theme=_THEME,
        legacy_windows=False,
    )
    codes = _Codes()
    console.print(Text(sheet.title, style="bold"), soft_wrap=True)
    for line in sheet.lines:
        console.print(codes(Text(f"  {line}")), soft_wrap=True)
    for table in sheet.tables:
        if table.rows:
            _print_table(console, table, width or UNLIMITED)
    lines = (line.rstrip() for line in page.getvalue().splitlines())
    return "\n".join(lines).rstrip()


def _print_table(console: Console, table: Table, width: int) -> None:
    shown = fitted(table, width)
    narrow = _width(_widths(shown), _GAP) > width
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=None, header_style="", collapse_padding=narrow)
    for name in shown.columns:
        drawn.add_column(Text(name), no_wrap=True, justify="right" if name in NUMBERS else "left")
    for row in shown.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(Text(f"\n{table.title}", style="bold"), soft_wrap=True)
    console.print(drawn)
    if table.left_out:
        console.print(Text(f"  ... and {table.left_out} more: to_json() has all of them"), soft_wrap=True)
    if hidden := [name for name in table.columns if name not in shown.columns and _has_cells(table, name)]:
        console.print(Text(f"  Too narrow for: {', '.join(hidden)}"), soft_wrap=True)


# ---------------------------------------------------------------- tables in a narrow terminal


def fitted(table: Table, width: int) -> Table:
    """A table that takes at most this many columns.

    First the columns without content are left out and the gaps made smaller, then long texts are cut in their middle,
    and if that is not enough, the last columns are left out.
    """
    if _width(_widths(table), _GAP) <= width:
        return table
    full = _only(table, [name for name in table.columns if _has_cells(table, name)] or table.columns[:1])
    for count in range(len(full.columns), 0, -1):
        some = _only(full, full.columns[:count])
        widths = _shrunk(some, width)
        if _width(widths, _NARROW_GAP) <= width:
            break
    rows = (tuple(map(elided, row, widths)) for row in some.rows)
    return some._replace(rows=tuple(rows))


def elided(text: str, width: int) -> str:
    """The text, or its beginning and its end around an ellipsis."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 2
    tail = text
    while cell_len(tail) > width - 1 - head:
        tail = tail[1 + (cell_len(tail) - (width - 1 - head)) // 4 :]
    return f"{set_cell_size(text, head).rstrip()}…{tail}"


def _has_cells(table: Table, name: str) -> bool:
    at = table.columns.index(name)
    return any(row[at] for row in table.rows)


def _only(table: Table, names: Sequence[str]) -> Table:
    keep = [index for index, name in enumerate(table.columns) if name in names]
    rows = tuple(tuple(row[index] for index in keep) for row in table.rows)
    return table._replace(columns=tuple(table.columns[index] for index in keep), rows=rows)


def _widths(table: Table) -> list[int]:
    columns = zip(table.columns, *table.rows, strict=True)
    return [max(map(cell_len, cells)) for cells in columns]


def _width(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1) + 2  # and a blank at each end


def _shrunk(table: Table, width: int) -> list[int]:
    """The widths of the columns, of which the widest texts are cut; still too much if all are at their shortest."""
    widths = _widths(table)
    least = [
        natural if name in NUMBERS else min(natural, max(cell_len(name), _SHORTEST if at else _SHORTEST_FIRST))
        for at, (name, natural) in enumerate(zip(table.columns, widths, strict=True))
    ]
    if len(widths) == 1:
        least = [1]
    while _width(widths, _NARROW_GAP) > width and widths != least:
        at = max((index for index in range(len(widths)) if widths[index] > least[index]), key=widths.__getitem__)
        widths[at] -= 1
    return widths
