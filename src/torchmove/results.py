"""The base of every result: Inventory, Plan, Receipt, Verdict and the others hold data, and `reporting` draws them."""

from __future__ import annotations

import json

PAGE_MARK = "<!doctype html>\n<!-- a page of torchmove -->\n"  # what page.html begins with, and no other file does


class Result:
    """Prints in a terminal and a notebook, and turns into HTML and JSON."""

    # What draws it is imported when it is asked for: most moves are never printed, and rich takes a while to load.

    def __repr__(self) -> str:
        from torchmove.reporting import report

        return f"<{type(self).__name__}: {report(self).sheet().title}>"

    def __str__(self) -> str:
        from torchmove.reporting import report, text

        return text.render(report(self).sheet())

    def _repr_html_(self) -> str:
        from torchmove.reporting import html, report

        return html.framed(report(self).page())

    def to_html(self) -> str:
        """All of it as one page for a browser, which needs no other file and no network."""
        from torchmove.reporting import html, report

        return html.render(report(self).page())

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it, not only what is printed."""
        from torchmove.reporting import report

        return json.dumps(report(self).facts(), indent=indent)
