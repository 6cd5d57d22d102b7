"""Threads, pools and worker processes that a step uses: threads run on the simulated device, processes outside of it.

The rehearsal waits a short time for threads. A thread that runs longer gets the exception `Over` at its next operation,
because the tensors that it would change are real again. The batches of data loaders are inputs on the CPU.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import reduction
from types import FunctionType
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader

from torchmove.internals.simulation import RUN_PROCESS, LoaderIterator, Process, ThreadDispatchMode, pytree
from torchmove.rehearsing.device import Over, SimulatedDevice, Task, outside_simulation
from torchmove.rehearsing.function_overrides import FunctionOverrides
from torchmove.rehearsing.origins import delivered as delivered_by_loader
from torchmove.rehearsing.tensors import CPU, StandIn

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


# ---------------------------------------------------------------- data loaders


@contextmanager
def delivered(stage: SimulatedDevice) -> Iterator[list[Any]]:
    """Patch loaders and processes; yields the step's loaders with persistent workers, which `dismiss` ends."""
    begin, following = DataLoader.__iter__, LoaderIterator.__next__
    bootstrap = getattr(Process, RUN_PROCESS)
    born: list[Any] = []

    def begun(loader: Any) -> Any:
        if loader.persistent_workers and loader._iterator is None:
            born.append(loader)
        return begin(loader)

    def in_child(*args: Any, **kwargs: Any) -> Any:
        stage.over, stage.now.task, stage.now.making = True, None, None
        stage.one_at_a_time = threading.RLock()  # a thread of the parent process may have held the old lock
        return bootstrap(*args, **kwargs)

    def deliver(loading: Any) -> Any:
        return pytree.tree_map(lambda each: _delivered(stage, each), following(loading))

    with ExitStack() as patches:
        for holder, name, value in [
            (DataLoader, "__iter__", begun),
            (LoaderIterator, "__next__", deliver),
            (Process, RUN_PROCESS, in_child),
            (reduction, "dump", _behind_the_scene(reduction.dump)),  # arguments of a new process
            (reductions, "rebuild_tensor", _behind_the_scene(reductions.rebuild_tensor)),
        ]:
            patches.enter_context(patch.object(holder, name, value))
        try:
            yield born
        finally:
            dismiss(born)


def dismiss(born: list[Any]) -> None:
    for loader in born:
        loader._iterator = None  # drops the last reference, which ends the workers


def _delivered(stage: SimulatedDevice, each: Any) -> Any:
    if isinstance(each, Tensor):
        return _delivered_tensor(stage, each)
    for holder in _holders(each, _DEEP):  # a batch of a user or library class
        for name, value in list(holder.items()):
            if isinstance(value, Tensor):
                holder[name] = _delivered_tensor(stage, value, each)
    return each


def _holders(batch: Any, deep: int) -> Iterator[dict[Any, Any]]:
    """The dicts of an object and of its values, to a depth: a graph batch keeps its tensors in nested objects."""
    is_closed = isinstance(batch, (Tensor, nn.Module, FunctionType, type))
    inside = batch if type(batch) is dict else getattr(batch, "__dict__", None)
    if type(inside) is dict and not is_closed:
        yield inside
        for value in list(inside.values()) if deep else ():
            yield from _holders(value, deep - 1)


def _delivered_tensor(stage: SimulatedDevice, tensor: Tensor, batch: Any = None) -> Tensor:
    standin = tensor if isinstance(tensor, StandIn) else stage.stand_in(tensor, CPU, None)
    if standin._place is CPU:
        standin._origin = delivered_by_loader(stage, standin, batch)
    return standin


_DEEP = 3


def _behind_the_scene(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # pickled by this name
    def done(*args: Any, **kwargs: Any) -> Any:
        with outside_simulation():
            return function(*args, **kwargs)

    return done
