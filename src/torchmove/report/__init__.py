"""How a noun shows itself: it describes itself as a Sheet and as plain facts; the files here render those.

Nothing here knows the nouns, so a new noun prints in a terminal, a notebook and as JSON by describing itself once. One
that has more to show in a browser than its sheet says `page` too.
"""

from __future__ import annotations

import json
from typing import Any

from torchmove.report.page import Bar, Figure, Page, Point, Points, State, Timeline, Tree, page_of
from torchmove.report.sheet import Sheet, Table, counted, first_of, listed, readable_bytes, readable_seconds, table

__all__ = [
    "Bar",
    "Figure",
    "Page",
    "Point",
    "Points",
    "Reported",
    "Sheet",
    "State",
    "Table",
    "Timeline",
    "Tree",
    "counted",
    "first_of",
    "listed",
    "readable_bytes",
    "readable_seconds",
    "table",
]


class Reported:
    """Prints in a terminal and a notebook, and turns into HTML and JSON. A noun says `sheet` and `facts`."""

    def sheet(self) -> Sheet:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        raise NotImplementedError

    def page(self) -> Page:
        return page_of(type(self).__name__, self.sheet())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sheet().title}>"

    def __str__(self) -> str:
        from torchmove.report import text  # rich takes a while to load

        return text.render(self.sheet())

    def _repr_html_(self) -> str:
        from torchmove.report import html

        return html.framed(self.page())

    def to_html(self) -> str:
        """All of it as one page for a browser, which needs no other file and no network."""
        from torchmove.report import html

        return html.render(self.page())

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it, not only what is printed."""
        return json.dumps(self.facts(), indent=indent)
