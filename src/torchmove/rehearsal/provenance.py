"""Where a tensor came from, and where in the user's code we are."""

from __future__ import annotations

import gc
import linecache
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor, nn

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)

_PACKAGES = ("site-packages", "dist-packages")


class Line(NamedTuple):
    """A line of code."""

    file: str
    number: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"


class Provenance(NamedTuple):
    """What a tensor is to the user: what kind of thing, in words, where it was made if in the step, and the remedy."""

    kind: str
    what: str
    remedy: str
    line: Line | None = None


NOWHERE = Line("?", 0)


def users_line() -> Line:
    """The innermost line of code that is neither torch's nor Python's own nor ours."""
    for frame in _frames(sys._getframe(1)):
        if is_users(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno)
    return NOWHERE


def called_by_user() -> bool:
    """Is it the user's own code that has called torch, and not torch itself?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


def factory(name: str, line: Line) -> Provenance:
    """Of a tensor that was made where nobody said."""
    what = f"made on cpu by torch.{name} without device="
    return Provenance("factory", what, f"torch.{name}(..., device=...)", line)


def outsider(tensor: Tensor) -> Provenance:
    """Of a tensor that is none of the given objects'. Who holds it tells what it is."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, tuple) and any(type(each) is types.FunctionType for each in gc.get_referrers(holder)):
            return Provenance(
                "closure", "a function has it as a default", "make it inside, on the device of the others"
            )
    if not any(_is_kept(holder) for holder in gc.get_referrers(tensor)):
        return Provenance("input", "it was made on cpu", "x = x.to(device), before it is used")
    remedy = "give it to the rehearsal, and to tm.move, too; or move it before"
    return Provenance("loss", "it belongs to none of the given objects", remedy)


def _is_kept(holder: object) -> bool:
    """Is it something that lasts longer than the step: the variables of a module, the attributes of an object?"""
    if type(holder) not in (dict, list, tuple):
        return False
    owners = gc.get_referrers(holder)
    return any(isinstance(each, (types.ModuleType, nn.Module)) or type(each) is dict for each in owners)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
    # A thread that torch started: whoever waits for it in the main thread is the user.
    if threading.current_thread() is not threading.main_thread():
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None:
            yield frame
            frame = frame.f_back


def is_users(file: str) -> bool:
    if file.startswith((_TORCH, _OURS, "<frozen", "<__array_function__")):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_STANDARD)


def is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or any(f"{os.sep}{name}{os.sep}" in file for name in _PACKAGES)


def users_line_of(error: BaseException) -> Line:
    """The user's innermost line on the way to an error."""
    found, step = NOWHERE, error.__traceback__
    while step is not None:
        if is_users(step.tb_frame.f_code.co_filename):
            found = Line(step.tb_frame.f_code.co_filename, step.tb_lineno)
        step = step.tb_next
    return found
