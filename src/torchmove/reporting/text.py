"""Render a sheet as text for a terminal, with rich."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table as RichTable
from rich.text import Text
from rich.theme import Theme

from torchmove.reporting.page import Sheet, Table

# Lines are not wrapped or cut, so that paths can be copied; a narrower terminal wraps them itself.
WIDTH = 10_000


class _Codes(RegexHighlighter):
    """Highlights the codes of refusals, findings and notes, and `Fix:`."""

    highlights = [r"(?P<bad>\b[RV]\d{3}\b)", r"(?P<note>\bN\d{3}\b)", r"(?P<note>\bFix:)"]  # noqa: RUF012


_THEME = Theme({"bad": "bold red", "note": "cyan"})


def render(sheet: Sheet, *, color: bool = False) -> str:
    page = io.StringIO()
    console = Console(
        file=page,
        width=WIDTH,
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
