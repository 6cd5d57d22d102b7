"""What a step leaves to others, threads that it starts and tasks that it hands to a pool, is on the stage as it is.

They are waited for, for a while. Whoever goes on after that meets the end at its next operation: what it would change
are real tensors again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torchmove.internals.simulation import TorchDispatchMode
from torchmove.rehearsing.device import Over, SimulatedDevice, Task
from torchmove.rehearsing.function_overrides import FunctionOverrides

_PATIENCE = 2.0  # seconds
_MOMENT = 0.001


class ThreadTracking:
    """All that run beside a step, on its stage. `fail` is told of the error that ends a thread."""

    def __init__(self, stage: SimulatedDevice, fail: Callable[[BaseException], None]) -> None:
        self.stage, self.fail, self.leader = stage, fail, threading.get_ident()
        self.tasks: list[Task] = []
        self.hired = threading.local()  # a pool starts its threads as work comes in: they outlast the step

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
        """In another process nobody is, whatever was going on when it began."""
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
            except (Over, SystemExit):  # the latter ends a thread, and is no error
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
        """Wait for what is under way, then call it off. False: something had not ended that should have: no daemon, and
        it has to do with torch."""
        try:
            self.wait()
        finally:
            late = any(task.touched and not task.daemon and not task.ended for task in self.tasks)
            with self.stage.one_at_a_time:
                self.stage.over = True
        self.wait()
        return not late

    def wait(self) -> None:
        """A daemon that does nothing with torch, such as a progress bar's, may go on for ever."""
        end = time.monotonic() + _PATIENCE
        while any(not task.ended and (task.touched or not task.daemon) for task in self.tasks):
            if time.monotonic() > end:
                return
            time.sleep(_MOMENT)


class _Entrance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Onto the stage, for another thread: a mode can be entered by one."""

    def __init__(self, stage: SimulatedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stage = stage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.stage.goes_on()
        return self.stage.run(func, args, kwargs or {})
