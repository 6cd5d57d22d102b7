"""Draw results: as text for a terminal, as a page for a browser, as JSON.

A result holds data. Its report says what there is to show, as a sheet (a title, lines, tables), as a page and as plain
facts; `text` and `html` render those. A new kind of result is a class `<Name>Report` in a file here, and a row below.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Generic, TypeVar

from torchmove.reporting.page import Page, page_of
from torchmove.reporting.sheet import Sheet
from torchmove.results import Result

R = TypeVar("R", bound=Result)

# The file here that draws each kind of result.
_FILES = {
    **dict.fromkeys(("Inventory", "Plan", "Receipt", "Verdict"), "chain"),
    **dict.fromkeys(("Parked", "Swap"), "parking"),
    "ByRank": "ranks",
    "Rehearsal": "rehearsal",
    **dict.fromkeys(("Contents", "Relocated"), "checkpoints"),
    **dict.fromkeys(("Devices", "Bench"), "machine"),
}


class Report(Generic[R]):
    """What there is to show of a result."""

    def __init__(self, result: R) -> None:
        self.result = result

    def sheet(self) -> Sheet:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        raise NotImplementedError

    def page(self) -> Page:
        return page_of(type(self.result).__name__, self.sheet())


def report(result: Result) -> Report[Any]:
    """The report of a result, also of one of a subclass of its class."""
    name = next(kind.__name__ for kind in type(result).__mro__ if kind.__name__ in _FILES)
    made: Report[Any] = getattr(import_module(f"torchmove.reporting.{_FILES[name]}"), f"{name}Report")(result)
    return made
