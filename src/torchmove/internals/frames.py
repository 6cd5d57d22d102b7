"""Stack frames: of the caller, and of the main thread."""

from __future__ import annotations

import sys
import threading
from types import FrameType


def frame(up: int) -> FrameType:
    """The frame of the function that calls this (0), of its caller (1), and so on."""
    return sys._getframe(up + 1)


def main_thread_frame() -> FrameType | None:
    """The frame that the main thread is executing."""
    return sys._current_frames().get(threading.main_thread().ident or 0)
