"""Process-wide settings that are changed for a while and restored whatever happens: signals, the collector, modes.

Python may raise between any two lines, from a signal handler or from another thread; also between two lines of
`__enter__` or `__exit__`, where none of their own `try` blocks helps. So a switch is entered twice by one statement,
`with Switch() as it, it:`. The first entry only makes sure that an interrupt of the second one is handled.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain, compress, repeat, starmap
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self", bound="Switch")


class Switch:
    """A setting to change. `restore` may be called at any time and repeatedly, also when `switch` was interrupted."""

    _is_open = False

    def switch(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        if self._is_open:
            self.switch()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def under(make: Callable[[], Switch]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the function runs while the setting is changed."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            with make() as it, it:
                return function(*args, **options)

        return call

    return decorate


_Handler = Callable[[int, FrameType | None], Any]


class HeldInterrupts(Switch):
    """While open, signals are recorded; on exit they are delivered in the order in which they came, each once.

    Python runs signal handlers between two lines of the main thread, and raises there what they raise. So reading and
    setting all handlers is one C call each (`signal.signal` itself is Python), during which no handler runs; and
    recording a signal is a C call too.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._noted: dict[int, FrameType | None] = {}
        self._note = self._noted.setdefault  # called with a signal number and a frame

    def switch(self) -> None:
        # Python runs signal handlers in the main thread only: other threads have nothing to hold back.
        if threading.current_thread() is threading.main_thread():
            handlers = dict(zip(_NUMBERS, map(_signal.getsignal, _NUMBERS), strict=True))
            self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
            list(map(_signal.signal, self._before, repeat(self._note)))

    def restore(self) -> None:
        """Restore all handlers, deliver the recorded signals, and then raise what a handler raised."""
        try:
            self._set_back()
        except BaseException:  # raised by a handler that is restored already
            self.restore()
            raise
        self._deliver()

    def break_off(self) -> None:
        """Raise a recorded Ctrl-C as KeyboardInterrupt, unless the user installed a handler for it."""
        if signal.SIGINT in self._noted and self._before[signal.SIGINT] is signal.default_int_handler:
            del self._noted[signal.SIGINT]
            raise KeyboardInterrupt

    def _set_back(self) -> None:
        for number, handler in self._before.items():
            # Other code may have set another handler meanwhile, which stays.
            if _signal.getsignal(number) is self._note:
                _signal.signal(number, handler)

    def _deliver(self) -> None:
        number = next(iter(self._noted), None)
        if number is None:
            return
        try:
            # Call the handler instead of raising the signal again: `signal.set_wakeup_fd` has already reported it.
            self._before[number](number, sys._getframe())
        finally:
            self._noted.pop(number, None)
            self._deliver()


_NUMBERS = [*map(int, sorted(signal.valid_signals()))]


def everything_of(*kinds: type[T]) -> list[T]:
    """Every object of the given types or their subclasses that the collector tracks."""
    # The iterator gets no name here, so that it is freed with the call that exhausts it.
    return list(_instances(_with_subclasses(kinds)))


def _instances(kinds: set[type]) -> Iterator[Any]:
    # Each object comes twice in a row, once to read its type. (itertools.tee would hold references to some of them.)
    twice = chain.from_iterable(map(repeat, chain.from_iterable(starmap(gc.get_referrers, [tuple(kinds)])), repeat(2)))
    return compress(twice, map(kinds.__contains__, map(type, twice)))


def _with_subclasses(kinds: tuple[type, ...]) -> set[type]:
    found: set[type] = set()
    todo = [*kinds]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += type.__subclasses__(each)
    return found


_MANY_OBJECTS = 5000  # collecting fewer takes no measurable time
# Some builds of Python freeze a few hundred objects at start, which may be unfrozen. A program that calls gc.freeze has
# thousands by then, which must stay frozen.
_FROZEN_BY_PYTHON = 1000
_SHARE = 100  # a full collection takes at most one part in this many of the time


class _WithoutCollector(Switch):
    def __init__(self) -> None:
        self._was_on = gc.isenabled() and gc.get_threshold()[0] > 0
        if self._was_on:
            _in_time.collect()
        self._before = gc.get_count()[0]

    def switch(self) -> None:
        if self._was_on:
            gc.disable()

    def restore(self) -> None:
        if not self._was_on or gc.isenabled():
            return
        try:
            if gc.get_count()[0] - self._before > _MANY_OBJECTS and gc.get_freeze_count() < _FROZEN_BY_PYTHON:
                # Move all objects to the oldest generation, or the next allocation would collect all of them. In a
                # single C call: an interrupt in between would leave everything frozen.
                list(chain(starmap(gc.freeze, [()]), starmap(gc.unfreeze, [()])))
                _in_time.is_owed = True
        finally:
            gc.enable()


without_collector = under(_WithoutCollector)
"""A decorator that turns the collector off: collecting meanwhile would find nothing, and take as long as the work."""


class _InTime:
    """Runs a full collection when one is due.

    Objects that were moved to the oldest generation may include garbage of the program, and the move resets the
    collector's record of when it last collected that generation. A program that moves repeatedly would never free it.
    So this collects it, unless the collector did so itself. It runs before a move and not after one, so that a Ctrl-C
    meanwhile interrupts no finished work.
    """

    def __init__(self) -> None:
        self.is_owed = False
        self.since, self.seconds = time.perf_counter(), 0.01
        self.collections = _full_collections()

    def collect(self) -> None:
        if not self.is_owed:
            return
        now = time.perf_counter()
        if _full_collections() == self.collections:
            if now - self.since < _SHARE * self.seconds:
                return
            gc.collect()
            self.seconds = time.perf_counter() - now
        self.is_owed, self.since, self.collections = False, time.perf_counter(), _full_collections()


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


_in_time = _InTime()

without_modes = _disable_current_modes  # the dispatch modes


class _PlainTorch(Switch):
    def __init__(self) -> None:
        self._autograd: Any = None
        self._overrides = torch._C._get_torch_function_state()  # type: ignore[attr-defined]

    def switch(self) -> None:
        # The guard records the autograd settings when it is made, and restores them on exit, or when it is freed.
        self._autograd = torch._C._InferenceMode(False)
        torch._C._set_grad_enabled(False)
        torch._C._set_torch_function_state(torch._C._TorchFunctionState.SUBCLASSES_DISABLED)  # type: ignore[attr-defined]

    def restore(self) -> None:
        torch._C._set_torch_function_state(self._overrides)  # type: ignore[attr-defined]
        if self._autograd is not None:
            self._autograd.__exit__(None, None, None)


plain_torch = under(_PlainTorch)
"""A decorator: no autograd, no inference mode, no `__torch_function__`, whatever the caller has switched on.

Dispatch modes stay on: a rehearsal is one.
"""


def makes_fakes() -> bool:
    """Whether a `FakeTensorMode` is active, under which new tensors have no bytes."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


# ---------------------------------------------------------------- the undo list

Step = Callable[[], object]
_TRIES = 3


class Undo(list[Step]):
    """Undo steps, each of which can run again after it was interrupted. A step is removed only after it has run.

    `with undo, undo:` runs them all when the block raises. It is entered twice so that an exception during the first
    rollback, at any line, makes the second entry run the remaining steps.

    Attributes:
        failed: what could not be undone, as the message of the first step that failed repeatedly.
        error: the exception that the block raised.
    """

    def __init__(self, *, first: Step | None = None, always: bool = False) -> None:
        """`first`: a step to run before all others. `always`: run the steps even if the block succeeds."""
        super().__init__()
        self.failed = ""
        self.error: BaseException | None = None
        self._first, self._always = first, always
        self._first_error: BaseException | None = None

    def put_back(self) -> None:
        """Run all steps, the last one first. Exceptions raised meanwhile are raised at the end."""
        with HeldInterrupts() as interrupts, interrupts:
            if self and self._first is not None:
                self.append(self._first)
            while self:
                failure = self._failure_of(self[-1])
                self.failed = self.failed or failure
                self.pop()
        if self._first_error is not None:
            raise self._first_error

    def _failure_of(self, step: Step) -> str:
        for _ in range(_TRIES):
            try:
                step()
                return ""
            except BaseException as error:
                self._first_error = error if self._first_error is None else self._first_error
                failure = _text_of(error)
        return failure

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._always:
            self.error = error if self.error is None else self.error
            self.put_back()


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # the exception's own __str__ raises
        return type(error).__name__
