"""Threads that copy host memory. A copy lets go of Python's lock, so that they run side by side with all else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from torchmove.internals.modes import plain_torch

Task = Callable[[], None]
Done = SimpleQueue[tuple[int, BaseException | None]]


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Takes tasks; each ends up in the queue that came with it, under its ticket, with the error it met."""

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
            # Whoever waits for it may count on this thread to hold nothing of what it copied.
            del entry, task
            done.put((ticket, error))
            del error, done


def _error_of(task: Task) -> BaseException | None:
    try:
        task()
    except BaseException as error:
        return error
    return None
