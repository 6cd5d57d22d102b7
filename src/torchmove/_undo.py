"""An undo list: each step back is on it before the step is taken; run backwards, it leaves all as it was."""

from __future__ import annotations

from collections.abc import Callable

Undo = list[Callable[[], object]]


def put_back(undo: Undo) -> str:
    """Run the list backwards and empty it. What the first step says that could not be undone; the others are undone all
    the same."""
    failures = [failure for failure in map(_failure_of, reversed(undo)) if failure]
    undo.clear()
    return failures[0] if failures else ""


def _failure_of(step: Callable[[], object]) -> str:
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
