"""Threads that copy host memory. A copy releases the GIL, so they run in parallel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from torchmove.internals.guards import plain_torch

Task = Callable[[], None]
Done = SimpleQueue[tuple[int, BaseException | None]]


def cores() -> int:
    """Number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of threads. Each finished task is reported to its queue, by its ticket, with its error or None."""

    def __init__(self, count: int) -> None:
        self._todo: SimpleQueue[tuple[Task, int, Done] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True, name="torchmove") for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._threads)

    def give(self, task: Task, ticket: int, done: Done) -> None:
        self._todo.put((task, ticket, done))

    def stop(self) -> None:
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    @plain_torch
    def _work(self) -> None:
        while (entry := self._todo.get()) is not None:
            task, ticket, done = entry
            error = _error_of(task)
            # Before it is reported: a thread that waits for it may rely on this one holding none of its tensors.
            del entry, task
            done.put((ticket, error))
            del error, done


def _error_of(task: Task) -> BaseException | None:
    try:
        task()
    except BaseException as error:
        return error
    return None
