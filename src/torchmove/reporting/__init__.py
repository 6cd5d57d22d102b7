"""Render results: as text for a terminal, as a page for a browser, as JSON.

A result holds data. Its report selects what to show: a sheet (a title, lines, tables), a page, and JSON data; `text`
and `html` render those. A new kind of result needs a class `<Name>Report` in a file here, and an entry below.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Generic, TypeVar

from torchmove.reporting.page import Page, Sheet, page_of
from torchmove.results import Result

R = TypeVar("R", bound=Result)

# The module here that reports each kind of result.
_FILES = {
    **dict.fromkeys(("Inventory", "Selection", "Summary"), "inventory_reports"),
    **dict.fromkeys(("Plan", "Receipt", "Verdict"), "chain_reports"),
    **dict.fromkeys(("Parked", "Swap", "ByRank"), "parking_reports"),
    **dict.fromkeys(("Rehearsal", "Fixes"), "rehearsal_report"),
    **dict.fromkeys(("Contents", "SelectedContents", "Relocated"), "checkpoint_reports"),
    **dict.fromkeys(("Devices", "Bench"), "machine_reports"),
}


_FEW = 12  # lines, and tensors


class Report(Generic[R]):
    """What to show of a result."""

    def __init__(self, result: R) -> None:
        self.result = result

    def sheet(self) -> Sheet:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """All of the result as JSON data."""
        raise NotImplementedError

    def is_small(self, page: Page) -> bool:
        """Whether a notebook shows the sheet in a few lines, rather than the page in a frame."""
        sheet = self.sheet()
        lines = len("\n".join(sheet.lines).splitlines())
        rows = sum(len(table.rows) + table.left_out for table in sheet.tables)
        return lines + rows <= _FEW and (page.state is None or len(page.state.node) <= _FEW)

    def page(self) -> Page:
        return page_of(type(self.result).__name__, self.sheet())


def report(result: Result) -> Report[Any]:
    """The report of a result, also for subclasses of the result classes."""
    name = next(kind.__name__ for kind in type(result).__mro__ if kind.__name__ in _FILES)
    made: Report[Any] = getattr(import_module(f"torchmove.reporting.{_FILES[name]}"), f"{name}Report")(result)
    return made
