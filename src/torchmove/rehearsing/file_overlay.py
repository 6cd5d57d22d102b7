"""A script's files in a rehearsal: what it writes goes to a temporary folder, and it reads its own files from there.

Python's file functions are patched: `open`, those of `os`, and `shutil.rmtree`; pathlib, shutil, numpy, logging and
tensorboard call these. The folder holds what was written, under the path that it was written to.
Code that opens files in C or C++ by their path, and other programs, see and write the real files.
"""

from __future__ import annotations

import builtins
import bz2
import errno
import io
import os
import shutil
import stat
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from multiprocessing.util import get_temp_dir
from typing import Any
from unittest.mock import patch

from torchmove.internals.simulation import file_systems

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES = ("/dev", "/proc", "/sys")
_READING = ("stat", "lstat", "access", "readlink", "listxattr", "getxattr")
_CHANGING = ("chmod", "utime", "truncate", "chown", "setxattr", "removexattr")
_REMOVING = ("remove", "unlink", "rmdir")
_MOVING = ("rename", "replace")
_active: list[_Overlay] = []  # at most one


@contextmanager
def nothing_written(folder: str) -> Iterator[None]:
    """Redirect what this process writes to a temporary folder."""
    overlay = _Overlay(tempfile.mkdtemp(dir=os.path.realpath(folder)))
    _active.append(overlay)
    try:
        with ExitStack() as patches:
            for holder, name, value in overlay.patches():
                patches.enter_context(patch.object(holder, name, value))
            yield
    finally:
        _active.clear()
        os.chdir(overlay.started_in)


def is_active() -> bool:
    """Whether files are written to a temporary folder."""
    return bool(_active)


class _Overlay:
    """The files that were written, in `root`, above those of the disk.

    Of a path the copy in `root` counts, if there is one; else the file on the disk, unless it was removed.
    """

    def __init__(self, root: str) -> None:
        self.root, self.started_in = root, os.getcwd()
        # Worker processes share tensors by sockets in this folder; asked for now, it is a real one.
        self.sockets = get_temp_dir()
        self.temporary = os.path.join(root, "temporary")
        os.mkdir(self.temporary)
        self.removed: set[str] = set()
        self.now = threading.local()  # busy: the functions of `os` that we call ourselves are the real ones
        self.lock = threading.RLock()

    def patches(self) -> Iterator[tuple[Any, str, Any]]:
        yield tempfile, "tempdir", self.temporary  # deleted in the end whatever the script does
        opened = self.opening(open)
        for module, name in ((builtins, "open"), (io, "open"), (bz2, "_builtin_open"), (tarfile, "bltn_open")):
            yield module, name, opened
        for place in file_systems:
            yield place, "open", self.opening_descriptor(os.open) if place is os else self.opening(io.open)
            for name, over in self.functions():
                if hasattr(place, name):
                    yield place, name, over(getattr(place, name))
        yield shutil, "rmtree", self.removing_tree(shutil.rmtree)

    def functions(self) -> Iterator[tuple[str, Callable[[Callable[..., Any]], Callable[..., Any]]]]:
        for names, over in (
            (_READING, self.reading),
            (_CHANGING, self.changing),
            (_REMOVING, self.removing),
            (_MOVING, self.moving),
            (("mkdir", "mkfifo"), self.making),
            (("symlink", "link"), self.linking),
            (("listdir",), self.listing),
            (("scandir",), self.scanning),
            (("chdir",), self.changing_folder),
            (("getcwd",), self.current_folder),
        ):
            for name in names:
                yield name, over

    # ------------------------------------------------------------ paths

    @contextmanager
    def busy(self) -> Iterator[None]:
        before = getattr(self.now, "busy", False)
        self.now.busy = True
        try:
            yield
        finally:
            self.now.busy = before

    def passes(self, path: Any, options: dict[str, Any]) -> bool:
        """Whether a call is left alone: for a descriptor, a device or a temporary file, or a call of our own.

        All are once the script has ended: a library that it imported keeps the functions that it found.
        """
        if _active != [self] or getattr(self.now, "busy", False) or not isinstance(path, (str, bytes, os.PathLike)):
            return True
        if any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            return True
        full = os.path.join(os.getcwd(), os.fsdecode(path))
        return full.startswith(tuple(f"{each}{os.sep}" for each in (self.root, self.sockets, *_DEVICES)))

    def real(self, path: Any) -> str:
        """The path on the disk, without links in its folders; relative to the folder that the script is in."""
        full = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        with self.busy():
            folder, name = os.path.split(full)
            return os.path.join(os.path.realpath(folder), name)

    def above(self, real: str) -> str:
        """Where the file of a path is written to."""
        drive, rest = os.path.splitdrive(real)
        return os.path.join(self.root, "files", drive.replace(":", ""), rest.lstrip("\\/"))

    def seen(self, real: str) -> str:
        """The path of the file that the script sees under this path."""
        above = folder = self.above(real)
        with self.busy():
            if os.path.lexists(above) or self.is_removed(real):
                return above
            while not os.path.lexists(folder):
                folder = os.path.dirname(folder)
            return real if os.path.isdir(folder) else above  # below a file that was written there is nothing

    def is_removed(self, real: str) -> bool:
        return any(real == each or real.startswith(f"{each}{os.sep}") for each in self.removed)

    def prepared(self, real: str, *, copied: bool = False) -> str:
        """The path to write to; its folder is made, and the file of the disk copied, if it is to be changed."""
        seen, above = self.seen(real), self.above(real)
        folder, seen_folder = os.path.dirname(above), self.seen(os.path.dirname(real))
        with self.busy():
            if not os.path.isdir(folder):
                if not os.path.isdir(seen_folder):
                    os.stat(os.path.join(seen_folder, "file"))  # raises what is wrong with the folder
                if not os.access(seen_folder, os.W_OK):
                    raise OSError(errno.EACCES, os.strerror(errno.EACCES), real)
                os.makedirs(folder)
            if copied and seen != above and os.path.isfile(seen):
                shutil.copyfile(seen, above)
                shutil.copymode(seen, above)
            elif copied and seen != above and os.path.isdir(seen):
                os.mkdir(above)
        return above

    # ------------------------------------------------------------ open

    def opening(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def opened(file: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
            if self.passes(file, {}) or options.get("opener") is not None:
                return really(file, mode, *given, **options)
            with self.named(file):
                path = self.for_mode(self.real(file), isinstance(mode, str) and not {*mode}.isdisjoint("wax+"), mode)
                with self.busy():
                    stream = really(path, mode, *given, **options)
            return _with_name(stream, file)

        return opened

    def for_mode(self, real: str, writes: bool, mode: str) -> str:
        if not writes:
            return self.seen(real)
        if "x" in mode and self.exists(real):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), real)
        if "w" in mode and self.is_folder(real):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), real)
        return self.prepared(real, copied="a" in mode or "r" in mode)

    def opening_descriptor(self, really: Callable[..., int]) -> Callable[..., int]:
        @wraps(really)
        def opened(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
            if self.passes(path, options):
                return really(path, flags, mode, **options)
            with self.named(path):
                real = self.real(path)
                if flags & os.O_CREAT and flags & os.O_EXCL and self.exists(real):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), real)
                target = self.prepared(real, copied=not flags & os.O_TRUNC) if flags & _WRITING else self.seen(real)
                return really(target, flags, mode, **options)

        return opened

    def exists(self, real: str) -> bool:
        seen = self.seen(real)
        with self.busy():
            return os.path.lexists(seen)

    def is_folder(self, real: str) -> bool:
        seen = self.seen(real)
        with self.busy():
            return os.path.isdir(seen)

    @contextmanager
    def named(self, path: Any, other: Any = None) -> Iterator[None]:
        """Name the script's path in an error, not the one in the temporary folder."""
        try:
            with self.lock:
                yield
        except OSError as error:
            if error.filename is not None:
                error.filename = path
            if error.filename2 is not None:
                error.filename2 = other
            raise

    # ------------------------------------------------------------ functions of os

    def reading(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def read(path: Any, *given: Any, **options: Any) -> Any:
            if self.passes(path, options):
                return really(path, *given, **options)
            with self.named(path):
                return really(self.seen(self.real(path)), *given, **options)

        return read

    def changing(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def changed(path: Any, *given: Any, **options: Any) -> Any:
            if self.passes(path, options):
                return really(path, *given, **options)
            with self.named(path):
                return really(self.prepared(self.real(path), copied=True), *given, **options)

        return changed

    def making(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def made(path: Any, *given: Any, **options: Any) -> Any:
            if self.passes(path, options):
                return really(path, *given, **options)
            with self.named(path):
                real = self.real(path)
                if self.exists(real):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), real)
                return really(self.prepared(real), *given, **options)

        return made

    def removing(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def removed(path: Any, *given: Any, **options: Any) -> None:
            if self.passes(path, options):
                really(path, *given, **options)
                return
            with self.named(path):
                real = self.real(path)
                if really.__name__ == "rmdir" and self.names_in(real):
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), real)
                really(self.prepared(real, copied=True), **options)  # raises as the disk would
                self.removed.add(real)

        return removed

    def moving(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def moved(source: Any, target: Any, **options: Any) -> None:
            if self.passes(source, options) and self.passes(target, options):
                really(source, target, **options)
                return
            with self.named(source, target):
                old, new = (each if self.passes(each, {}) else self.real(each) for each in (source, target))
                if self.is_folder(old) and self.is_folder(new) and self.names_in(new):
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
                really(self.whole(old), new if self.passes(new, {}) else self.prepared(new, copied=True))
                self.removed.add(old)

        return moved

    def whole(self, real: str) -> str:
        """A file or a folder with its content, copied to the temporary folder to be moved there."""
        if self.passes(real, {}):
            return real
        above = self.prepared(real, copied=True)
        if self.is_folder(real):
            for name in self.names_in(real):
                self.whole(os.path.join(real, name))
        return above

    def linking(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def linked(source: Any, target: Any, *given: Any, **options: Any) -> None:
            if self.passes(target, options):
                really(source, target, *given, **options)
                return
            with self.named(source, target):
                new = self.real(target)
                if self.exists(new):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
                # Of a link we make a copy: a later change of the original does not show in it.
                origin = self.real(os.path.join(os.path.dirname(new), os.fsdecode(source)))
                with self.busy():
                    shutil.copyfile(self.seen(origin), self.prepared(new))

        return linked

    def removing_tree(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def removed(path: Any, *given: Any, **options: Any) -> None:
            if self.passes(path, options):
                really(path, *given, **options)
                return
            real = self.real(path)
            with self.named(path), self.busy():
                above, seen = self.above(real), self.seen(real)
                if not os.path.isdir(seen):
                    really(seen, *given, **options)  # raises, if it is to
                    return
                if os.path.isdir(above):
                    really(above)
                self.removed.add(real)

        return removed

    # ------------------------------------------------------------ folders

    def names_in(self, real: str) -> list[str]:
        above, found = self.above(real), set[str]()
        with self.busy():
            if not self.is_removed(real) and os.path.isdir(real):
                found |= {name for name in os.listdir(real) if not self.is_removed(os.path.join(real, name))}
            if os.path.isdir(above):
                found |= {*os.listdir(above)}
            elif not os.path.isdir(self.seen(real)):
                return os.listdir(self.seen(real))  # raises
        return sorted(found)

    def listing(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def listed(path: Any = ".") -> Any:
            if self.passes(path, {}):
                return really(path)
            with self.named(path):
                found = self.names_in(self.real(path))
            return [os.fsencode(each) for each in found] if isinstance(path, bytes) else found

        return listed

    def scanning(self, really: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(really)
        def scanned(path: Any = ".") -> Any:
            if self.passes(path, {}):
                return really(path)
            with self.named(path):
                names = self.names_in(self.real(path))
            return _Scanned(os.fspath(path), names)

        return scanned

    def changing_folder(self, really: Callable[..., None]) -> Callable[..., None]:
        @wraps(really)
        def changed(path: Any) -> None:
            if self.passes(path, {}):
                really(path)
                return
            with self.named(path):
                really(self.seen(self.real(path)))

        return changed

    def current_folder(self, really: Callable[[], str]) -> Callable[[], str]:
        files = os.path.join(self.root, "files")

        def current() -> str:
            folder = really()
            return folder.removeprefix(files) or os.sep if folder.startswith(files) else folder

        return current


class _Scanned:
    """The entries of a folder, as `os.scandir` yields them."""

    def __init__(self, folder: Any, names: list[str]) -> None:
        named = [os.fsencode(each) for each in names] if isinstance(folder, bytes) else names
        self._entries = iter([_Entry(each, os.path.join(folder, each)) for each in named])

    def __iter__(self) -> _Scanned:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Scanned:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class _Entry:
    def __init__(self, name: Any, path: Any) -> None:
        self.name, self.path = name, path

    def __fspath__(self) -> Any:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino


def _with_name(stream: Any, file: Any) -> Any:
    """A stream under the name by which the script opened it."""
    binary = stream
    while not isinstance(binary, io.RawIOBase):
        binary = getattr(binary, "buffer", None) or binary.raw
    binary.name = os.fspath(file)  # type: ignore[attr-defined]
    return stream
