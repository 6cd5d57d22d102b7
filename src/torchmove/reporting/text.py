"""A sheet as text for a terminal, by rich."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table as RichTable
from rich.text import Text
from rich.theme import Theme

from torchmove.reporting.sheet import Sheet, Table

# Paths are made to be copied: no line is folded or cut. Where the terminal is narrower, it wraps them itself.
WIDTH = 10_000


class _Codes(RegexHighlighter):
    """Refusals and findings stand out, notes and remedies a little."""

    highlights = [r"(?P<bad>\b[RV]\d{3}\b)", r"(?P<note>\bN\d{3}\b)", r"(?P<note>\bFix:)"]  # noqa: RUF012


_THEME = Theme({"bad": "bold red", "note": "cyan"})


def render(sheet: Sheet, *, colour: bool = False) -> str:
    page = io.StringIO()
    console = Console(
        file=page,
        width=WIDTH,
        color_system="standard" if colour else None,
        force_terminal=colour,
        force_jupyter=False,  # there rich would show the text and return none
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
            _print_table(console, table)
    lines = (line.rstrip() for line in page.getvalue().splitlines())
    return "\n".join(lines).rstrip()


def _print_table(console: Console, table: Table) -> None:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=None, header_style="")
    for name in table.columns:
        drawn.add_column(Text(name), no_wrap=True, justify="right" if name in ("bytes", "tensors") else "left")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(Text(f"\n{table.title}", style="bold"), soft_wrap=True)
    console.print(drawn)
    if table.left_out:
        console.print(Text(f"  ... and {table.left_out} more: to_json() has all of them"), soft_wrap=True)
