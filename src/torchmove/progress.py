"""The progress bar of a long move (in a terminal or a notebook, not in a pipe or a log), and its stages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


_AFTER_SECONDS = 1.0


class ProgressBar:
    """Appears when a move takes longer than a second: bytes, rate, time left."""

    def __init__(self, total: int, words: str, *, wanted: bool, console: Console | None = None) -> None:
        self._total, self._words = total, words
        self._console, self._wanted = console, wanted
        self._began = time.monotonic()
        self._moved = 0
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def advance(self, nbytes: int) -> None:
        self._moved += nbytes
        if not self._wanted:
            return
        if self._progress is None and time.monotonic() - self._began > _AFTER_SECONDS:
            self._show()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._moved)

    def _show(self) -> None:
        # Imported here: most moves end before this, and importing rich is slow.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = self._console or Console(stderr=True)
        self._wanted = console.is_terminal or console.is_jupyter
        if not self._wanted:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        self._progress = Progress(
            *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True
        )
        self._progress.add_task(self._words, total=self._total, completed=self._moved)
        self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


class Stage(NamedTuple):
    """One stage of a move, in seconds of `time.perf_counter`."""

    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Stages:
    """Consecutive stages: each ends where the next begins."""

    def __init__(self) -> None:
        self._begun: list[tuple[str, float]] = []

    def begin(self, name: str) -> None:
        self._begun.append((name, time.perf_counter()))

    def end(self) -> tuple[Stage, ...]:
        """End the last stage now and return all of them."""
        begun = [*self._begun, ("", time.perf_counter())]
        return tuple(Stage(name, at, begun[index + 1][1]) for index, (name, at) in enumerate(self._begun))


def stages_facts(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """The stages as JSON data, in seconds since the first began."""
    first = stages[0].began if stages else 0.0
    return [{"name": name, "began": began - first, "ended": ended - first} for name, began, ended in stages]
