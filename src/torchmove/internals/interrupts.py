"""Signals, held back while a state is between two places: Ctrl-C, and every other that Python has a handler for."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import sys
import threading
from collections.abc import Callable
from itertools import repeat
from types import FrameType
from typing import Any

from torchmove.internals.switch import Switch

_Handler = Callable[[int, FrameType | None], Any]


class HeldInterrupts(Switch):
    """While open, signals are noted, and then delivered in the order in which they came, each once.

    Python runs handlers between two lines of the main thread, and what they raise is raised there. Reading and setting
    all handlers is a single call into C each (signal.signal itself is Python), in which no handler runs that is not
    asked for, and so is noting a signal.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._noted: dict[int, FrameType | None] = {}
        self._note = self._noted.setdefault  # called with the number and a frame

    def switch(self) -> None:
        # Python hands signals to the main thread alone: any other has nothing to hold back.
        if threading.current_thread() is threading.main_thread():
            handlers = dict(zip(_NUMBERS, map(_signal.getsignal, _NUMBERS), strict=True))
            self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
            list(map(_signal.signal, self._before, repeat(self._note)))

    def restore(self) -> None:
        """Raises what the handlers raise, once all of them are back and have been called."""
        try:
            self._set_back()
        except BaseException:  # a handler that is back already has been called, and has raised
            self.restore()
            raise
        self._deliver()

    def break_off(self) -> None:
        """Raise the Ctrl-C that is held, if it would be raised as KeyboardInterrupt and not for a handler of the user's
        own."""
        if signal.SIGINT in self._noted and self._before[signal.SIGINT] is signal.default_int_handler:
            del self._noted[signal.SIGINT]
            raise KeyboardInterrupt

    def _set_back(self) -> None:
        for number, handler in self._before.items():
            # Somebody's code may have set another meanwhile, which stays.
            if _signal.getsignal(number) is self._note:
                _signal.signal(number, handler)

    def _deliver(self) -> None:
        number = next(iter(self._noted), None)
        if number is None:
            return
        try:
            # Not raised once more: whoever reads `signal.set_wakeup_fd` has been told of it already.
            self._before[number](number, sys._getframe())
        finally:
            self._noted.pop(number, None)
            self._deliver()


_NUMBERS = [*map(int, sorted(signal.valid_signals()))]
