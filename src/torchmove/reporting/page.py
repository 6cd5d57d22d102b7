"""The parts of a page for the browser: figures, points, bars, a timeline, tables, and the state. All are optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torchmove.reporting.sheet import Sheet, Table

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


class Tree(NamedTuple):
    """Paths as a tree, in columns. A node's text is its parent's text and its own label, unless `texts` has it. Parents
    come before their children; -1 is the parent of a root."""

    labels: list[str]
    parents: list[int]
    label: list[int]
    texts: dict[int, str]


class DrawnState(NamedTuple):
    """The tensors of a state in columns. A column of integers indexes the list before it."""

    tree: Tree
    node: list[int]
    nbytes: list[int]
    roles: list[str]
    role: list[int]
    devices: list[str]
    device: list[int]
    shared: list[tuple[int, list[int]]]  # bytes of a storage and its tensors, unless one tensor covers it
    also: list[tuple[int, str]]  # a tensor, and another path to it
    dtypes: Sequence[str] = ()
    dtype: Sequence[int] = ()
    shapes: Sequence[str] = ()
    shape: Sequence[int] = ()
    placed: Sequence[int] = ()  # the device after the move, or the expected one
    moves: str = ""  # for each tensor "1" if it moves, else "0"
    reasons: Sequence[str] = ()
    stays: Sequence[tuple[int, int]] = ()  # a tensor, and the reason
    words: tuple[str, str] = ("", "")  # for `device` and `placed`


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
