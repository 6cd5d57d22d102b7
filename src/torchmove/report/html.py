"""A sheet as HTML for a notebook."""

from __future__ import annotations

from html import escape

from torchmove.report.sheet import Sheet, Table


def render(sheet: Sheet) -> str:
    lines = "".join(f"<div>{escape(line)}</div>" for line in sheet.lines)
    tables = "".join(_table(table) for table in sheet.tables if table.rows)
    return f"<div><b>{escape(sheet.title)}</b>{lines}{tables}</div>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    rest = f"<div>... and {table.left_out} more</div>" if table.left_out else ""
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>{body}</table>{rest}"
