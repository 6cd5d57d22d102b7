"""Stack frames: of the caller, of the main thread and of the others, and the variables in them."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def frame(up: int) -> FrameType:
    """The frame of the function that calls this (0), of its caller (1), and so on."""
    return sys._getframe(up + 1)


def main_thread_frame() -> FrameType | None:
    """The frame that the main thread is executing."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def callers_frame() -> FrameType | None:
    """The frame that called into torchmove: the nearest one of code outside of it."""
    return next((each for each in stack_of(sys._getframe(1)) if not is_own(each)), None)


def is_own(frame: FrameType) -> bool:
    """Whether it executes code of torchmove."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE


def stack_of(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_other_threads() -> list[FrameType]:
    """The frames that the other threads are executing."""
    mine = threading.get_ident()
    return [frame for thread, frame in sys._current_frames().items() if thread != mine]


# How many references to the dict of its variables there are while `variables_of` asks, if only the frame keeps it.
_REFERENCES = 3


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables. The frame keeps none of their values alive for it."""
    scope = frame.f_locals
    copy = dict(scope)
    # Before Python 3.13, the locals of a function are a dict that stays with its frame, and would keep the values of
    # all its variables alive. The function itself may use it, as what `locals()` returned.
    is_temporary = frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(scope) is dict
    if is_temporary and sys.getrefcount(scope) <= _REFERENCES:
        scope.clear()
    return copy
