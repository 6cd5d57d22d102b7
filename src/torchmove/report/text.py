"""A sheet as text for a terminal, by rich."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from torchmove.report.sheet import Sheet, Table

# Paths are made to be copied: no line is folded or cut. Where the terminal is narrower, it wraps them itself.
WIDTH = 10_000


def render(sheet: Sheet) -> str:
    page = io.StringIO()
    console = Console(file=page, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(Text(sheet.title), soft_wrap=True)
    for line in sheet.lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
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
    console.print(Text(f"\n{table.title}"), soft_wrap=True)
    console.print(drawn)
    if table.left_out:
        console.print(Text(f"  ... and {table.left_out} more: to_json() has all of them"), soft_wrap=True)
