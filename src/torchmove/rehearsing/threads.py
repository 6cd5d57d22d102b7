"""Run threads and pool tasks that a step starts on the simulated device too.

The rehearsal waits a short time for them. A thread that runs longer gets the exception `Over` at its next operation,
because the tensors that it would change are real again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torchmove.internals.simulation import ThreadDispatchMode
from torchmove.rehearsing.device import Over, SimulatedDevice, Task
from torchmove.rehearsing.function_overrides import FunctionOverrides

_PATIENCE = 2.0  # seconds
_MOMENT = 0.001


class ThreadTracking:
    """The threads and tasks that a step starts. `fail` receives the error that ends a thread."""

    def __init__(self, stage: SimulatedDevice, fail: Callable[[BaseException], None]) -> None:
        self.stage, self.fail, self.leader = stage, fail, threading.get_ident()
        self.tasks: list[Task] = []
        self.hired = threading.local()  # pools start threads in `submit`; these outlive the step

    @contextmanager
    def followed(self) -> Iterator[None]:
        start, submit = threading.Thread.start, ThreadPoolExecutor.submit

        def started(thread: threading.Thread) -> None:
            if self.is_on_stage() and not getattr(self.hired, "now", False):
                thread.run = self.player(thread)  # type: ignore[method-assign]
            start(thread)

        def submitted(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if not self.is_on_stage():
                return submit(pool, work, *args, **kwargs)
            self.hired.now = True
            try:
                return submit(pool, self.played, self.taken_on(), work, *args, **kwargs)
            finally:
                self.hired.now = False

        with patch.object(threading.Thread, "start", started), patch.object(ThreadPoolExecutor, "submit", submitted):
            yield

    def is_on_stage(self) -> bool:
        """Whether this thread belongs to the step; never in a forked process."""
        is_own = threading.get_ident() == self.leader or self.stage.now.task is not None
        return is_own and not self.stage.over

    def taken_on(self, *, daemon: bool = False) -> Task:
        self.tasks.append(Task(daemon))
        return self.tasks[-1]

    def player(self, thread: threading.Thread) -> Callable[[], None]:
        task, play = self.taken_on(daemon=thread.daemon), thread.run

        def run() -> None:
            del thread.run  # the class's own again
            try:
                self.played(task, play)
            except (Over, SystemExit):  # SystemExit ends a thread and is no error
                pass
            except BaseException as error:
                self.fail(error)

        return run

    def played(self, task: Task, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        now, before = self.stage.now, self.stage.now.task
        now.task = task
        try:
            with FunctionOverrides(self.stage), _Entrance(self.stage):
                return work(*args, **kwargs)
        finally:
            now.task, task.ended = before, True

    def end(self) -> bool:
        """Wait for the tasks, then end the simulation. False if a task that uses torch, and is no daemon, was still
        running."""
        try:
            self.wait()
        finally:
            late = any(task.touched and not task.daemon and not task.ended for task in self.tasks)
            with self.stage.one_at_a_time:
                self.stage.over = True
        self.wait()
        return not late

    def wait(self) -> None:
        """Wait for the tasks, except daemons that do not use torch, such as a progress bar's: they may never end."""
        end = time.monotonic() + _PATIENCE
        while any(not task.ended and (task.touched or not task.daemon) for task in self.tasks):
            if time.monotonic() > end:
                return
            time.sleep(_MOMENT)


class _Entrance(ThreadDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode of another thread: one mode object can be active in one thread only."""

    def __init__(self, stage: SimulatedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage = stage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.stage.goes_on()
        return self.stage.run(func, args, kwargs or {})
