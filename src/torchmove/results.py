"""The base class of every result, such as Plan and Receipt: results hold data, `reporting` renders it."""

from __future__ import annotations

import json
import random
import sys

SCHEMA = 1  # of the JSON: it grows when a key changes its meaning or goes
PAGE_MARK = "<!doctype html>\n<!-- a page of torchmove -->\n"  # the first lines of page.html, and of no other file


class Result:
    """Prints in a terminal and a notebook, and converts to HTML and JSON."""

    # Renderers are imported on use: most moves are never printed, and importing rich is slow.

    def __repr__(self) -> str:
        from torchmove.reporting import report

        return f"<{type(self).__name__}: {report(self).sheet().title}>"

    def __str__(self) -> str:
        state = random.getstate()  # rich uses Python's random generator when it is imported, and for links
        try:
            from torchmove.reporting import report, text

            return text.render(report(self).sheet(), width=text.terminal_width(sys.stdout))
        finally:
            random.setstate(state)

    def _repr_html_(self) -> str:
        from torchmove.reporting import html, report

        mine = report(self)
        page = mine.page()
        return html.brief(mine.sheet()) if mine.is_small(page) else html.framed(page)

    def to_html(self) -> str:
        """The whole result as one self-contained page for a browser."""
        from torchmove.reporting import html, report

        return html.render(report(self).page())

    def to_json(self, *, indent: int | None = 2) -> str:
        """The whole result, not only what is printed."""
        from torchmove.reporting import report

        return json.dumps({"schema": SCHEMA, **report(self).facts()}, indent=indent)
