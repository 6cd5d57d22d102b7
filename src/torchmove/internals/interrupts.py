"""Hold back signals while tensors are being rebound: Ctrl-C, and every other signal with a Python handler."""

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
