"""Ctrl-C, held back while a state is between two places."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class HeldInterrupts:
    """While open, a Ctrl-C is noted and not raised; `pending` tells. On closing it goes to whom it was meant for.

    `breaks_off`: it is one that would have been raised as KeyboardInterrupt, and not for a handler of the user's own.
    """

    def __init__(self) -> None:
        self.pending = False
        self._before: object = None
        # Python hands signals to the main thread alone: any other has nothing to hold back.
        self._here = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> HeldInterrupts:
        if self._here:
            self._before = signal.getsignal(signal.SIGINT)
            self._here = callable(self._before)
        if self._here:
            signal.signal(signal.SIGINT, self._note)
        return self

    @property
    def breaks_off(self) -> bool:
        return self.pending and self._before is signal.default_int_handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._here:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
            if self.pending:
                signal.raise_signal(signal.SIGINT)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.pending = True
