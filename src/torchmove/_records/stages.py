"""When each stage of a move began and ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple


class Stage(NamedTuple):
    """In seconds of `time.perf_counter`."""

    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Stages:
    """One follows the other: a stage ends where the next begins."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, float]] = []

    def begin(self, name: str) -> None:
        self._begun.append((name, time.perf_counter()))

    def end(self) -> tuple[Stage, ...]:
        """All of them; the last ends now."""
        begun = [*self._begun, ("", time.perf_counter())]
        return tuple(Stage(name, at, begun[index + 1][1]) for index, (name, at) in enumerate(self._begun))


def stages_facts(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Counted from the beginning of the first."""
    first = stages[0].began if stages else 0.0
    return [{"name": name, "began": began - first, "ended": ended - first} for name, began, ended in stages]
