"""How a noun shows itself: it describes itself as a Sheet and as plain facts; the files here render those.

Nothing here knows the nouns, so a new noun prints in a terminal, a notebook and as JSON by describing itself once.
"""

from __future__ import annotations

import json
from typing import Any

from torchmove.report.sheet import Sheet, Table, counted, readable_bytes, table

__all__ = ["Reported", "Sheet", "Table", "counted", "readable_bytes", "table"]


class Reported:
    """Prints in a terminal and a notebook, and turns into JSON. A noun says `sheet` and `facts`."""

    def sheet(self) -> Sheet:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sheet().title}>"

    def __str__(self) -> str:
        from torchmove.report import text  # rich takes a while to load

        return text.render(self.sheet())

    def _repr_html_(self) -> str:
        from torchmove.report import html

        return html.render(self.sheet())

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it, not only what is printed."""
        return json.dumps(self.facts(), indent=indent)
