"""Render a page as one self-contained HTML document, or as a frame for a notebook.

Text, figures and tables are written here and need no scripts. The scripts in `browser` draw the map and the list of
tensors from the state as JSON; without scripts the page lists the largest tensors. The page's Content-Security-Policy
allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from torchmove.formatting import readable_bytes, readable_seconds
from torchmove.reporting.drawing import DrawnState, Tree
from torchmove.reporting.page import NUMBERS, SHOWN_ROWS, Figure, Page, Points, Sheet, SizeBar, Table, Timeline, table

_SCRIPTS = ("state.js", "layout.js", "details.js", "map.js", "rows.js", "start.js")
_OPEN_POINTS, _POINTS = (
    6,
    400,
)  # shown unfolded, and written at all: a state may have a finding for each tensor


def render(page: Page) -> str:
    first = [points for points in page.points if points.tone == "bad"]
    later = [points for points in page.points if points.tone != "bad"]
    state = page.state if page.state is not None and page.state.node else None
    known = state is not None
    parts = [
        _figures(page.figures),
        *(f'<p class="line">{escape(line)}</p>' for line in page.lines),
        *(_points(points, findable=known) for points in first),
        _file("state.html") if known else "",
        _timeline(page.timeline),
        *map(_bar, page.bars),
        *map(_table, page.tables),
        *(_points(points, findable=known) for points in later),
        _file("tensors.html") + _largest(state) if state is not None else "",
    ]
    written = Template(_file("page.html")).substitute(
        kind=escape(page.kind),
        title=escape(page.title),
        style=_file("page.css"),
        script=_script(),
        script_hash=base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode(),
        body="\n".join(filter(None, parts)),
        data=_island(state),
    )
    return written.encode(errors="backslashreplace").decode()  # a name may contain a lone surrogate


def brief(sheet: Sheet) -> str:
    """The sheet for a notebook, in its fonts and colors: a title, lines and tables, without a frame."""
    lines = "".join(
        f'<div style="white-space:pre-wrap;margin-left:1em;font-family:monospace">{escape(line)}</div>'
        for line in sheet.lines
    )
    return f"<div><strong>{escape(sheet.title)}</strong>{lines}{''.join(map(_brief_table, sheet.tables))}</div>"


def _brief_table(table: Table) -> str:
    if not table.rows:
        return ""
    sides = ["right" if name in NUMBERS else "left" for name in table.columns]
    head = _brief_row("th", sides, table.columns)
    body = "".join(_brief_row("td", sides, row) for row in table.rows)
    title = f'<caption style="text-align:left;color:inherit">{escape(table.title)}</caption>'
    return f'<table style="margin:8px 0">{title}<thead>{head}</thead><tbody>{body}</tbody></table>'


def _brief_row(tag: str, sides: Iterable[str], cells: Iterable[str]) -> str:
    style = "text-align:{};white-space:pre"
    inside = (
        f'<{tag} style="{style.format(side)}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(inside)}</tr>"


def framed(page: Page) -> str:
    """The page in an iframe for a notebook, so that styles and scripts do not affect each other."""
    height = 860 if page.state is not None and page.state.node else _height(page)
    style = f"width:100%;height:{height}px;border:0;resize:vertical"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(render(page))}"></iframe>'


def _height(page: Page) -> int:
    """An estimate of the page's height, since a frame does not adapt to its contents."""
    rows = sum(len(table.rows) + 3 for table in page.tables) + sum(3 * len(group.points) + 2 for group in page.points)
    return min(860, 200 + 30 * (rows + len(page.lines)) + 90 * len(page.bars))


@cache
def _file(name: str) -> str:
    return (files("torchmove.reporting") / "browser" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    inside = "\n".join(map(_file, _SCRIPTS))
    return f'(() => {{\n"use strict";\n{inside}}})();'


def _island(state: DrawnState | None) -> str:
    """The state as JSON, with `<`, `>` and `&` escaped so that it cannot contain HTML."""
    facts = None if state is None else {**state._asdict(), "tree": state.tree._asdict()}
    written = json.dumps(facts, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ---------------------------------------------------------------- parts


def _section(title: str, inside: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{inside}</section>'


def _figures(figures: Sequence[Figure]) -> str:
    def one(figure: Figure) -> str:
        note = f'<dd class="note">{escape(figure.note)}</dd>' if figure.note else ""
        inside = f"<dt>{escape(figure.name)}</dt><dd>{escape(figure.value)}</dd>{note}"
        return f'<div class="{figure.tone}">{inside}</div>'

    return f'<dl class="figures">{"".join(map(one, figures))}</dl>' if figures else ""


def _points(points: Points, *, findable: bool) -> str:
    def one(code: str, where: str, why: str, remedy: str, quote: str) -> str:
        place = f"<code>{escape(where)}</code>"
        if findable:
            place = f'<button type="button" class="find" data-find="{escape(where)}">{place}</button>'
        parts = [f'<p class="where">{f"<b>{escape(code)}</b>" if code else ""}{place}</p>']
        parts += [f"<pre>{escape(quote)}</pre>"] if quote else []
        parts += [f"<p>{escape(why)}</p>"]
        parts += [f'<p class="remedy"><span>Fix:</span> {escape(remedy)}</p>'] if remedy else []
        return f"<li>{''.join(parts)}</li>"

    if not points.points:
        return ""
    written = [one(*point) for point in points.points[:_POINTS]]
    inside = f"<ul>{''.join(written[:_OPEN_POINTS])}</ul>"
    if folded := written[_OPEN_POINTS:]:
        more = f"<summary>{len(folded)} more</summary><ul>{''.join(folded)}</ul>"
        inside += f"<details>{more}{_left_out(len(points.points) - len(written))}</details>"
    return _section(f"{points.title} ({len(points.points)})", inside, f"points {points.tone}")


def _left_out(count: int) -> str:
    return f'<p class="note">and {count} more: to_json() has all of them</p>' if count else ""


def _timeline(timeline: Timeline | None) -> str:
    if timeline is None or not timeline.stages:
        return ""
    whole = sum(seconds for _, seconds, _ in timeline.stages) or 1.0
    rows, before = [], 0.0
    for name, seconds, note in timeline.stages:
        place = f"left:{100 * before / whole:.3f}%;width:{100 * seconds / whole:.3f}%"
        rows.append(
            f'<tr><th scope="row">{escape(name)}</th><td class="number">{readable_seconds(seconds)}</td>'
            f'<td class="track"><span style="{place}"></span></td><td class="note">{escape(note)}</td></tr>'
        )
        before += seconds
    title = f"{timeline.title}: {readable_seconds(whole)} in total"
    return _section(title, f'<table class="timeline">{"".join(rows)}</table>')


def _bar(bar: SizeBar) -> str:
    whole = sum(size for _, size in bar.parts)
    if not whole:
        return ""
    spans = "".join(
        f'<span class="p{index % 6}" style="flex-grow:{size}"></span>' for index, (_, size) in enumerate(bar.parts)
    )
    names = "".join(
        f'<li><i class="p{index % 6}"></i>{escape(name)} <b>{readable_bytes(size)}</b></li>'
        for index, (name, size) in enumerate(bar.parts)
    )
    inside = f'<div class="bar" aria-hidden="true">{spans}</div><ul class="parts">{names}</ul>'
    return _section(f"{bar.title}: {readable_bytes(whole)}", inside)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    kinds = ["number" if name in NUMBERS else "" for name in table.columns]
    head = "".join(_cell("th", kind, name, ' scope="col"') for kind, name in zip(kinds, table.columns, strict=True))
    body = "".join(f"<tr>{_row(kinds, row)}</tr>" for row in table.rows)
    written = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    scrolling = f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(table.title)}">{written}</div>'
    return _section(table.title[:1].upper() + table.title[1:], scrolling + _left_out(table.left_out))


def _largest(state: DrawnState) -> str:
    """The largest tensors, for a browser without scripts."""
    largest = heapq.nlargest(SHOWN_ROWS, range(len(state.node)), key=state.nbytes.__getitem__)
    before, after = state.words
    columns = ["path", "role", "bytes", before or "device", *([after] if state.placed else [])]
    rows = ([_path(state.tree, state.node[tensor]), *_cells_of(state, tensor)] for tensor in largest)
    written = _table(table("largest tensors", columns, rows, total=len(state.node)))
    return f'<noscript><p class="line">The map and the list of all tensors need JavaScript.</p>{written}</noscript>'


def _cells_of(state: DrawnState, tensor: int) -> Iterable[str]:
    yield state.roles[state.role[tensor]]
    yield readable_bytes(state.nbytes[tensor])
    yield state.devices[state.device[tensor]]
    if state.placed:
        yield state.devices[state.placed[tensor]]


def _path(tree: Tree, node: int) -> str:
    end = ""
    while node >= 0 and node not in tree.texts:
        end = tree.labels[tree.label[node]] + end
        node = tree.parents[node]
    return tree.texts.get(node, "") + end


def _row(kinds: Iterable[str], row: Iterable[str]) -> str:
    return "".join(_cell("td", kind, cell) for kind, cell in zip(kinds, row, strict=True))


def _cell(tag: str, kind: str, text: str, more: str = "") -> str:
    return f'<{tag} class="{kind}"{more}>{escape(text)}</{tag}>'
