"""The base class of every result, such as Plan and Receipt: results hold data, `reporting` renders it."""

from __future__ import annotations

import json
import random

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

            return text.render(report(self).sheet())
        finally:
            random.setstate(state)

    def _repr_html_(self) -> str:
        from torchmove.reporting import html, report

        return html.framed(report(self).page())

    def to_html(self) -> str:
        """The whole result as one self-contained page for a browser."""
        from torchmove.reporting import html, report

        return html.render(report(self).page())

    def to_json(self, *, indent: int | None = 2) -> str:
        """The whole result, not only what is printed."""
        from torchmove.reporting import report

        return json.dumps(report(self).facts(), indent=indent)
