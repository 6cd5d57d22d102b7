"""Rehearse a whole script: it runs as `python train.py` would run it, for a few optimizer steps, and writes no file.

The simulation is on from its first line, so the script itself asks for the device and moves its model there.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchmove.internals.simulation import LoaderIterator
from torchmove.rehearsing.device import Unfinished, outside_simulation
from torchmove.rehearsing.file_overlay import nothing_written
from torchmove.rehearsing.provenance import is_ours, is_program
from torchmove.rehearsing.result import Rehearsal
from torchmove.rehearsing.run import Options, rehearse_named
from torchmove.rehearsing.tensors import StandIn

_AT_MOST = 10  # times `steps`: how long to wait for the first step of another optimizer
_AGAIN_SECONDS = 0.01


class Script(NamedTuple):
    """What to run, as `rehearse_script` documents it."""

    path: str
    args: Sequence[str] = ()
    steps: int = 2
    seconds: float = 300.0
    whole_loaders: bool = False

    def check(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: a rehearsal makes at least one optimizer step. Fix: steps=2")
        if not self.seconds > 0:
            raise ValueError(f"seconds={self.seconds}: the time limit must be positive. Fix: seconds=300")

    def compiled(self) -> CodeType:
        with open(self.path, "rb") as file:
            return compile(file.read(), os.path.abspath(self.path), "exec", dont_inherit=True)


def rehearse_script(script: Script, options: Options | None = None) -> Rehearsal:
    """Run a script on a simulated device and report the lines that would fail on the real one.

    The script is its own process in real life, and a rehearsal gives it this one: modules that it imports first see a
    machine with the device. The command line therefore rehearses one script and ends.

    Args:
        script: `path`, its arguments `args`, and how far it runs: it ends where the optimizer would begin a step after
            `steps` steps, after `seconds` at the latest. Each pass over a DataLoader ends after `steps` optimizer
            steps, or after `steps` batches without gradients, unless `whole_loaders` is true.
        options: the device and how to compute, as for `rehearse`.

    Returns:
        The rehearsal.

    Raises:
        OSError: the file cannot be read.
        SyntaxError: it is not Python.
        ValueError: an option is unknown, or the device is the CPU.
    """
    script.check()
    code = script.compiled()
    name = os.path.basename(script.path)
    options = (options or Options())._replace(subject=name)
    with tempfile.TemporaryDirectory(prefix="torchmove-", ignore_cleanup_errors=True) as folder:

        def run() -> None:
            _perform(script, code, folder)

        found = rehearse_named(run, (), {}, options)
    return found.of_script(name, _latest[-1].extent())


_latest: list[_Run] = []  # at most one; here, a rehearsal does not restore it


def _perform(script: Script, code: CodeType, folder: str) -> None:
    _latest[:] = [_Run(script, code)]
    _latest[0].go(folder)


class _EnoughSteps(BaseException):
    """Ends the script: no `except Exception` of the script catches it, and its `finally` blocks run."""


class _Run:
    """One run of a script."""

    def __init__(self, script: Script, code: CodeType) -> None:
        self.script, self.code = script, code
        self.steps: Counter[int] = Counter()  # by the id of the optimizer
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.enough = False

    def go(self, folder: str) -> None:
        with ExitStack() as around:
            around.enter_context(_process_of(self.script))
            around.enter_context(nothing_written(folder))
            around.enter_context(self.counted())
            around.enter_context(self.short_loaders())
            around.enter_context(self.timed())
            try:
                exec(self.code, vars(sys.modules["__main__"]))
            except _EnoughSteps:
                pass
            except SystemExit as error:
                if error.code not in (None, 0):
                    raise

    def extent(self) -> str:
        most = max(self.steps.values(), default=0)
        made = f"{most} optimizer step{'' if most == 1 else 's'}"
        return f"ran for {made}" if self.enough else f"ran to its end with {made}" if most else "ran to its end"

    # ------------------------------------------------------------ optimizer steps

    @contextmanager
    def counted(self) -> Iterator[None]:
        make = Optimizer.__init__

        def made(optimizer: Optimizer, *given: Any, **options: Any) -> None:
            make(optimizer, *given, **options)
            self.optimizers.add(optimizer)

        handles = (register_optimizer_step_pre_hook(self.begins), register_optimizer_step_post_hook(self.ends))
        try:
            with patch.object(Optimizer, "__init__", made):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def begins(self, optimizer: Optimizer, *_: Any) -> None:
        made = self.steps[id(optimizer)]
        if made >= self.script.steps and (self.all_stepped() or made >= _AT_MOST * self.script.steps):
            self.enough = True
            raise _EnoughSteps

    def all_stepped(self) -> bool:
        """With several optimizers, as of a GAN: each has made a step."""
        return all(self.steps[id(each)] for each in self.optimizers)

    def ends(self, optimizer: Optimizer, *_: Any) -> None:
        self.steps[id(optimizer)] += 1
        _mark_memory(optimizer)

    @contextmanager
    def short_loaders(self) -> Iterator[None]:
        following = LoaderIterator.__next__
        begun: weakref.WeakKeyDictionary[Any, tuple[int, Counter[str]]] = weakref.WeakKeyDictionary()

        def next_batch(loading: Any) -> Any:
            steps, seen = begun.setdefault(loading, (self.steps.total(), Counter()))
            is_enough = seen["evaluated"] >= self.script.steps or self.steps.total() - steps >= self.script.steps
            if is_enough and not self.script.whole_loaders:
                del begun[loading]  # an iterator with persistent workers is used again
                raise StopIteration
            seen["evaluated"] += not torch.is_grad_enabled()
            return following(loading)

        with patch.object(LoaderIterator, "__next__", next_batch):
            yield

    # ------------------------------------------------------------ time

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Raise `Unfinished` in the script after the time limit; without it where there are no timers."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self.time_is_up)
        signal.setitimer(signal.ITIMER_REAL, self.script.seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def time_is_up(self, _: int, frame: FrameType | None) -> None:
        if _is_in_rehearsal(frame, self.code):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        if max(self.steps.values(), default=0) >= self.script.steps:
            self.enough = True
            raise _EnoughSteps
        made = self.steps.total()
        raise Unfinished(
            f"{made} of {self.script.steps} optimizer steps were made in {self.script.seconds:g} seconds",
            "allow more time, on the command line --seconds, or give the script less data",
        )


def _is_in_rehearsal(frame: FrameType | None, script: CodeType) -> bool:
    """Whether the rehearsal's own code is under way, which must not be interrupted."""
    while frame is not None and frame.f_code is not script:
        if is_ours(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return frame is None


def _mark_memory(optimizer: Optimizer) -> None:
    """Count the memory of what was trained: in a script nothing is known of it before."""
    for weight in (each for group in optimizer.param_groups for each in group["params"]):
        _mark(weight, "parameters")
        _mark(weight.grad, "gradients")
        for value in optimizer.state.get(weight, {}).values():
            _mark(value, "optimizer")


def _mark(tensor: Any, part: str) -> None:
    if isinstance(tensor, StandIn):
        with outside_simulation():
            tensor._stage.meter.mark(tensor._behind, part)


# ---------------------------------------------------------------- the process


@contextmanager
def _process_of(script: Script) -> Iterator[None]:
    """`__main__`, sys.argv and sys.path as `python train.py` has them; the script's own modules are forgotten after."""
    main = ModuleType("__main__")
    vars(main).update(__file__=os.path.abspath(script.path), __builtins__=builtins, __cached__=None)
    known, path, folder = {*sys.modules}, [*sys.path], os.getcwd()
    with (
        patch.dict(sys.modules, {"__main__": main}),
        patch.object(sys, "argv", [script.path, *script.args]),
        patch.object(sys, "dont_write_bytecode", True),
    ):
        sys.path.insert(0, os.path.dirname(os.path.realpath(script.path)))
        try:
            yield
        finally:
            sys.path[:] = path
            os.chdir(folder)
            libraries = {
                name: module
                for name, module in sys.modules.items()
                if name not in known and not is_program(getattr(module, "__file__", None) or "<frozen")
            }
    sys.modules.update(libraries)
