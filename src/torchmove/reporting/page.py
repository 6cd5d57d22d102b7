"""A page: what a noun shows in a browser. A sheet says it in words; a page has the numbers behind them too.

Every part may be missing. The files here know how to show each part, and no noun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torchmove.reporting.sheet import Sheet, Table

Tone = Literal["bad", "good", "plain"]


class Figure(NamedTuple):
    """A number that is worth a large font, under its name; `note` is the small print."""

    name: str
    value: str
    note: str = ""
    tone: Tone = "plain"


class Point(NamedTuple):
    """Something said about a place: a refusal, a finding, a note. `quote` is the line of code there."""

    code: str
    where: str
    why: str
    remedy: str = ""
    quote: str = ""


class Points(NamedTuple):
    title: str
    points: tuple[Point, ...]
    tone: Tone = "plain"


class SizeBar(NamedTuple):
    """Bytes, by part."""

    title: str
    parts: tuple[tuple[str, int], ...]


class Timeline(NamedTuple):
    """Stages, one behind the other: name, seconds, and a word on it."""

    title: str
    stages: tuple[tuple[str, float, str], ...]


class Tree(NamedTuple):
    """Paths, step by step, in columns. A node's text is that of its parent and its label behind it, unless `texts` has
    it. Parents come before their children; -1 is the parent of a root."""

    labels: list[str]
    parents: list[int]
    label: list[int]
    texts: dict[int, str]


class DrawnState(NamedTuple):
    """The tensors of a state in columns. A column of small numbers points into the list before it."""

    tree: Tree
    node: list[int]
    nbytes: list[int]
    roles: list[str]
    role: list[int]
    devices: list[str]
    device: list[int]
    shared: list[tuple[int, list[int]]]  # bytes of a storage and who looks at it, where it is not one tensor's, whole
    also: list[tuple[int, str]]  # a tensor, and one more path to it
    dtypes: Sequence[str] = ()
    dtype: Sequence[int] = ()
    shapes: Sequence[str] = ()
    shape: Sequence[int] = ()
    placed: Sequence[int] = ()  # on which device it will be, or should
    moves: str = ""  # for each tensor "1" if it moves, else "0"
    reasons: Sequence[str] = ()
    stays: Sequence[tuple[int, int]] = ()  # a tensor, and the reason
    words: tuple[str, str] = ("", "")  # for `device` and `placed`


class Page(NamedTuple):
    noun: str
    title: str
    lines: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    points: tuple[Points, ...] = ()
    timeline: Timeline | None = None
    bars: tuple[SizeBar, ...] = ()
    tables: tuple[Table, ...] = ()
    state: DrawnState | None = None


def page_of(noun: str, sheet: Sheet) -> Page:
    """What a noun that has no more to show than its sheet shows."""
    return Page(noun, sheet.title, lines=sheet.lines, tables=sheet.tables)
