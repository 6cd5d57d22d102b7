"""Where a tensor came from, and where in the user's code the step is: files, lines, and the call under way."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn

from torchmove.internals.frames import frame as frame_at
from torchmove.internals.frames import main_thread_frame

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)
_PACKAGES = ("site-packages", "dist-packages")
_NUMPY = importlib.util.find_spec("numpy")
_NUMPYS = (os.path.dirname(_NUMPY.origin) + os.sep,) if _NUMPY is not None and _NUMPY.origin else ()
_NO_USERS = (_TORCH, _OURS, "<frozen", "<__array_function__", "<eval_with_key>")  # the last: torch.fx code


class Line(NamedTuple):
    """A line of code."""

    file: str
    number: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.number}"


def shown(file: str) -> str:
    """A file's name without its folder, or a notebook cell as IPython shows it: `In[3]`."""
    shell = getattr(sys.modules.get("IPython.core.getipython"), "get_ipython", lambda: None)()
    counts = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return f"In[{counts[file]}]" if file in counts else os.path.basename(file)


class Provenance(NamedTuple):
    """A description of a misplaced tensor: the kind of mistake, what happened, the fix, and the line."""

    kind: str
    what: str
    remedy: str
    line: Line | None = None


class Origin:
    """The origin of a tensor on the wrong device. Tensors computed from it have the same origin.

    Attributes:
        root: the origin that problems are reported under. All tensors of a module that was not moved share one.
        reported: on a root, the problem reported for it.
        tensor: a weak reference to the tensor, to find the user's variable for it.
        made: where it was made, as a `Site` of evidence.py; None unless the rehearsal is one that records it.
    """

    __slots__ = ("_describe", "_described", "made", "reported", "root", "tensor")
    site_now: Callable[[], Any] = staticmethod(lambda: None)  # replaced while evidence is recorded

    def __init__(self, describe: Callable[[Origin], Provenance], root: Origin | None = None) -> None:
        self._describe = describe
        self._described: Provenance | None = None
        self.root: Origin = self if root is None else root.root
        self.reported: Any = None
        self.tensor: weakref.ref[Any] | None = None
        self.made = Origin.site_now()

    def described(self) -> Provenance:
        """The description, computed on first use: most origins are never reported."""
        if self._described is None:
            self._described = self._describe(self)
        return self._described


NOWHERE = Line("?", 0)


def users_line() -> Line:
    """The innermost line outside torch, the standard library and torchmove."""
    frame = users_frame()
    return NOWHERE if frame is None else Line(frame.f_code.co_filename, frame.f_lineno)


def own_line() -> Line | None:
    """The innermost line of the user's own code: like `users_line`, but not in an installed package."""
    files = (frame for frame in _frames(frame_at(1)) if calls_torch(frame.f_code.co_filename))
    frame = next((each for each in files if not is_installed(each.f_code.co_filename)), None)
    return None if frame is None else Line(frame.f_code.co_filename, frame.f_lineno)


def users_lines(most: int) -> list[Line]:
    """Up to `most` lines of the user's code, innermost first."""
    frames = reversed([*users_frames()])
    return [Line(frame.f_code.co_filename, frame.f_lineno) for frame in islice(frames, most)]


def users_frame() -> FrameType | None:
    return next((frame for frame in _frames(frame_at(1)) if calls_torch(frame.f_code.co_filename)), None)


_left: list[FrameType] = []  # the frames of the error being reported


@contextmanager
def frames_of(raised: TracebackType | None) -> Iterator[None]:
    """Search for the user's variables in the frames of a traceback instead of the current stack."""
    while raised is not None:
        _left.extend([raised.tb_frame] if calls_torch(raised.tb_frame.f_code.co_filename) else [])
        raised = raised.tb_next
    try:
        yield
    finally:
        _left.clear()


def users_frames() -> Iterator[FrameType]:
    """The frames of the user's code, from the step to the innermost."""
    if _left:
        return iter([*_left])
    found: list[FrameType] = []
    for frame in _frames(frame_at(1)):
        if calls_torch(frame.f_code.co_filename):
            found.append(frame)
        elif found and frame.f_code.co_filename.startswith(_OURS):
            break  # the remaining frames called the rehearsal
    return reversed(found)


def called_by_user() -> bool:
    """Whether the current torch call comes from the user's code and not from torch itself."""
    frame: FrameType | None = frame_at(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame is not None and calls_torch(frame.f_code.co_filename)


def called_from(folder: str) -> bool:
    """Whether the current torch call comes from code in this folder."""
    frame: FrameType | None = frame_at(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame is not None and folder in frame.f_code.co_filename.replace(os.sep, "/")


def module_being_built() -> tuple[nn.Module | None, Line]:
    """The outermost module whose `__init__` is running, and the user's line that creates it."""
    found, line = None, NOWHERE
    for frame in _frames(frame_at(1)):
        if frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
            built = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(built, nn.Module):
                found, line = built, NOWHERE
        elif found is not None and line is NOWHERE and calls_torch(frame.f_code.co_filename):
            line = Line(frame.f_code.co_filename, frame.f_lineno)
    return found, line


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
    # In a thread that torch started, the user's code is in the main thread, which waits for it.
    if threading.current_thread() is not threading.main_thread():
        frame = main_thread_frame()
        while frame is not None:
            yield frame
            frame = frame.f_back


_known: dict[str, bool] = {}


def is_users(file: str) -> bool:
    known = _known.get(file)
    if known is None:
        known = _known[file] = not file.startswith(_NO_USERS) and (
            file.startswith(_INSTALLED) or not file.startswith(_STANDARD)
        )
    return known


def calls_torch(file: str) -> bool:
    """Whether lines of this file are shown to the user: not those of numpy, which calls torch for its caller."""
    return is_users(file) and not file.startswith(_NUMPYS)


def is_installed(file: str) -> bool:
    is_within = file.startswith(_INSTALLED) or any(f"{os.sep}{name}{os.sep}" in file for name in _PACKAGES)
    return is_within or _is_written_by_library(file)


@functools.cache
def _is_written_by_library(file: str) -> bool:
    """Whether a library generated this file, for instance in a temporary folder, and imported it into its package."""
    names = [name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == file]
    packages = {name.partition(".")[0] for name in names if "." in name}
    files = (getattr(sys.modules.get(each), "__file__", None) or file for each in packages)
    return any(each != file and is_installed(each) for each in files)


def is_program(file: str) -> bool:
    """Whether a file belongs to the user's program, and not to a library or to Python."""
    return is_users(file) and not is_installed(file)


def is_ours(file: str) -> bool:
    return file.startswith(_OURS)


def users_line_of(error: BaseException) -> Line:
    """The innermost line of the user's own code in an error's traceback; else of a library."""
    found, step = NOWHERE, error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if calls_torch(file) and (found is NOWHERE or is_installed(found.file) or not is_installed(file)):
            found = Line(file, step.tb_lineno)
        step = step.tb_next
    return found


# ---------------------------------------------------------------- the call that a frame is executing


class Running(NamedTuple):
    """A call instruction; distinguishes several calls on one line."""

    code: CodeType
    instruction: int

    @classmethod
    def of(cls, frame: FrameType | None) -> Running | None:
        return None if frame is None else cls(frame.f_code, frame.f_lasti)

    def written(self) -> tuple[ast.Call | None, str]:
        """The expression and its text; None and an empty string if the file or the position is unknown."""
        text = "".join(linecache.getlines(self.code.co_filename))
        end = self._end()
        try:
            nodes = [*ast.walk(ast.parse(text))] if end is not None else []
        except (SyntaxError, ValueError):
            return None, ""
        calls = [each for each in nodes if isinstance(each, ast.Call) and (each.end_lineno, each.end_col_offset) == end]
        if not calls:
            return None, ""
        written = ast.get_source_segment(text, calls[0]) or ""
        return calls[0], ast.unparse(calls[0]) if "\n" in written else written

    def _end(self) -> tuple[int | None, int | None] | None:
        if sys.version_info < (3, 11):
            return None
        positions = next(islice(self.code.co_positions(), self.instruction // 2, None), None)
        return None if positions is None else (positions[1], positions[3])
