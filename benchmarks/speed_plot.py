"""The figures of speed.py as a plot, drawn by hand: bars of gigabytes a second above, seconds by size below.

It has no background, and colors of middle brightness: it reads on white and on black.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

GREY, PALE, BLUE, SKY, GREEN = "#7d7d7d", "#a0a0a0", "#3577e5", "#62a5f0", "#2f9e63"
BARS = [
    ("usual", "Module.to and a loop", PALE),
    ("move_first", "tm.move, first", SKY),
    ("move", "tm.move, later", BLUE),
    ("link", "pinned link", GREEN),
]
LINES = [("usual", "Module.to", PALE), ("move", "tm.move", BLUE)]
WIDTH, BAR_LEFT, BAR_ROOM, BAR_STEP = 760, 170, 500, 22
CURVE_LEFT, CURVE_STEP, CURVE_WIDTH, CURVE_HEIGHT = 60, 370, 290, 200


def plot(figures: Mapping[str, Any]) -> str:
    """As much of it as there are figures for."""
    drawn: list[str] = []
    y = 10
    if "transformer" in figures:
        y = _bars(drawn, figures["transformer"], y)
    if "sizes" in figures:
        y = _curves(drawn, figures["sizes"], y)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, *drawn, "</svg>", ""])


def _bars(drawn: list[str], part: Mapping[str, Any], y: int) -> int:
    ways = [bar for bar in BARS if bar[0] in part["ways"]]
    most = max(part["ways"][name][leg]["gb_per_second"] for name, _, _ in ways for leg in ("there", "back"))
    for leg, to in (("there", part["device"]), ("back", "cpu")):
        y += 20
        drawn.append(_text(BAR_LEFT, y, f"to {to}, GB/s", weight="bold"))
        y += 8
        for name, title, colour in ways:
            rate = part["ways"][name][leg]["gb_per_second"]
            length = rate / most * BAR_ROOM
            drawn.append(_text(BAR_LEFT - 8, y + 13, title, anchor="end"))
            drawn.append(f'<rect x="{BAR_LEFT}" y="{y}" width="{length:.1f}" height="{BAR_STEP - 5}" fill="{colour}"/>')
            drawn.append(_text(BAR_LEFT + length + 6, y + 13, f"{rate:.3g}"))
            y += BAR_STEP
    return y + 15


def _curves(drawn: list[str], part: Mapping[str, Any], y: int) -> int:
    rows = part["rows"]
    times = [seconds for row in rows for leg in row["seconds"].values() for seconds in leg.values()]
    across = _Scale.over([row["bytes"] for row in rows], CURVE_WIDTH)
    up = _Scale.over(times, CURVE_HEIGHT)
    for place, (leg, to) in enumerate((("there", part["device"]), ("back", "cpu"))):
        drawn.append(f'<g transform="translate({CURVE_LEFT + place * CURVE_STEP} {y + 30})">')
        drawn.append(_text(0, -12, f"to {to}, seconds by size", weight="bold"))
        drawn.extend(_axes(across, up))
        for way, title, colour in LINES:
            for tensors, dashes in ((1, ""), (8, ' stroke-dasharray="5 3"')):
                points = [
                    (across.at(row["bytes"]), CURVE_HEIGHT - up.at(row["seconds"][leg][way]))
                    for row in rows
                    if row["tensors"] == tensors
                ]
                drawn.append(_path(points, f'stroke="{colour}" stroke-width="2"{dashes}', f"{title}, {tensors}"))
        drawn.extend(_legend())
        drawn.append("</g>")
    return y + CURVE_HEIGHT + 70


def _legend() -> Iterable[str]:
    for place, (_, title, colour) in enumerate(LINES):
        yield _text(10, 14 + 16 * place, title, colour=colour, weight="bold")
    yield _text(10, 14 + 16 * len(LINES), "dashed: in eight tensors")


class _Scale(NamedTuple):
    """Logarithms on a length."""

    least: float
    most: float
    length: float

    @classmethod
    def over(cls, values: Sequence[float], length: float) -> _Scale:
        return cls(math.floor(math.log10(min(values))), math.log10(max(values)), length)

    def at(self, value: float) -> float:
        return (math.log10(value) - self.least) / (self.most - self.least) * self.length

    def ticks(self, at_most: int) -> list[float]:
        step = max(1, math.ceil((self.most - self.least) / at_most))
        return [10.0**power for power in range(int(self.least), math.floor(self.most) + 1, step)]


def _axes(across: _Scale, up: _Scale) -> Iterable[str]:
    yield _path([(0, 0), (0, CURVE_HEIGHT), (CURVE_WIDTH, CURVE_HEIGHT)], f'stroke="{GREY}"', "axes")
    for size in across.ticks(4):
        yield _text(across.at(size), CURVE_HEIGHT + 16, _short_bytes(size), anchor="middle")
    for seconds in up.ticks(8):
        yield _text(-6, CURVE_HEIGHT - up.at(seconds) + 4, _short_seconds(seconds), anchor="end")


def _path(points: Sequence[tuple[float, float]], style: str, title: str) -> str:
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{through}" fill="none" {style}><title>{escape(title)}</title></polyline>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = GREY, weight: str = "normal") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} fill="{colour}" font-weight="{weight}">{escape(words)}</text>'


def _short_bytes(size: float) -> str:
    return next(
        (f"{size / unit:g} {name}" for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if size >= unit), ""
    )


def _short_seconds(seconds: float) -> str:
    return next(
        (f"{seconds / unit:g} {name}" for unit, name in ((1, "s"), (1e-3, "ms")) if seconds >= unit),
        f"{seconds * 1e6:g} us",
    )
